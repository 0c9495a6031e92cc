"""Memory and time of an 8B model on 1, 8 and 64 GPUs, calculated: the tables of docs/scaling.md.

    python benchmarks/scaling.py

Nothing is measured. Memory follows from benchmarks/memory.py, operations from benchmarks/cost.py,
and times are operations over an assumed rate, the same for every part. Settings are those of
StableDRL's released code: 512 completions a phase on 1 and 8 GPUs. On 64, twice as many, since no
group is divided among processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cost import layer_flops
from benchmarks.memory import (
    ALL_BF16,
    ALL_MIXED,
    BF16,
    FLOAT32,
    Activations,
    Stored,
    activations,
    ddp_gpu,
    decoding_bytes,
    fsdp_gpu,
    low_rank,
    one_gpu,
    output_bytes,
    stored_adapter,
    stored_full,
)
from benchmarks.phases import DECODING, GROUP_SIZE, RECIPES, SHAPE, phase_flops

PROMPTS = {1: 32, 8: 32, 64: 64}  # N of a phase, by GPUs
RANK = 16
PEAK, UTILISATION = 989, 0.4  # TFLOP/s of H100 and H200 (SXM) in bfloat16; a share assumed of it
LINKS = {8: 300, 64: 50}  # GB/s into a GPU, assumed: NVLink in a machine, 400 Gb/s between machines
GB, PFLOP = 1e9, 1e15


@dataclass(frozen=True)
class Setup:
    """A way to train: what it stores, what a layer keeps, whether FSDP takes it."""

    name: str
    stored: Stored
    kept: Activations
    divisible: bool = True


SETUPS = (
    Setup("all parameters, `dtype=bfloat16`", stored_full(SHAPE, BF16), ALL_BF16),
    Setup("all parameters, `dtype=float32`, `bf16-mixed`", stored_full(SHAPE, FLOAT32), ALL_MIXED),
    Setup(
        f"`adapter=lora`, rank {RANK}, `dtype=bfloat16`",
        stored_adapter(SHAPE, RANK),
        low_rank(RANK),
        divisible=False,
    ),
)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is words and whose others are numbers."""
    head, *body = ("| " + " | ".join(line) + " |" for line in [header, *rows])
    return "\n".join([head, "|---" + "|---:" * (len(header) - 1) + "|", *body])


def gigabytes(number: float) -> str:
    """In 10⁹ bytes."""
    return f"{number / GB:.1f}"


def stored_table() -> str:
    """What each way of training stores, undivided."""
    rows = []
    for setup in SETUPS:
        stored = setup.stored
        # an adapter's reference is the model without it
        reference = stored.weights if setup.divisible else 0
        numbers = (stored.weights, stored.gradients, stored.moments, stored.kept, reference)
        rows.append([setup.name, *map(gigabytes, numbers)])
    return markdown(
        ("GB", "weights", "gradients", "AdamW", "together", "frozen reference, if any"), rows
    )


def passing_bytes(setup: Setup, completions: int, checkpointing: bool) -> float:
    """Of activations and output layer, of an update with that many completions in a pass."""
    recipe = RECIPES[0]
    rows = recipe.rows * completions
    kept = activations(SHAPE, rows, DECODING.context, setup.kept, checkpointing)
    return kept + output_bytes(SHAPE, rows * recipe.scored)


def gpu_table() -> str:
    """One GPU at its most in an update, one group in a pass, with activation checkpointing."""
    rows = []
    for setup in SETUPS:
        passing = passing_bytes(setup, GROUP_SIZE, True)
        copies = (0, setup.stored.weights) if setup.divisible else (0,)
        for reference in copies:
            divided = (
                [
                    gigabytes(fsdp_gpu(setup.stored, reference, passing, SHAPE, processes))
                    for processes in (8, 64)
                ]
                if setup.divisible
                else ["refused", "refused"]
            )
            rows.append(
                [
                    setup.name + (", with reference" if reference else ""),
                    gigabytes(one_gpu(setup.stored, reference, passing)),
                    gigabytes(ddp_gpu(setup.stored, reference, passing)),
                    *divided,
                ]
            )
    header = ("GB of one GPU", "`gpu`", "`ddp`, any number", "`fsdp`, 8", "`fsdp`, 64")
    return markdown(header, rows)


def activation_table() -> str:
    """Activations with and without checkpointing, by completions in a pass."""
    recipe, rows = RECIPES[0], []
    for completions in (1, 4, GROUP_SIZE):
        count = recipe.rows * completions
        cells = [
            gigabytes(activations(SHAPE, count, DECODING.context, setup.kept, checkpointing))
            for setup in SETUPS
            for checkpointing in (False, True)
        ]
        output = gigabytes(output_bytes(SHAPE, count * recipe.scored))
        rows.append([str(completions), *cells, output])
    header = [
        "completions in a pass, GB",
        *(
            f"{name}, {words}"
            for name in ("bfloat16", "bf16-mixed", "LoRA")
            for words in ("all kept", "checkpointing")
        ),
        "output layer",
    ]
    return markdown(header, rows)


def decoding_table() -> str:
    """Memory of decoding, weights apart."""
    numbers = (16, 64, 512)
    cells = [gigabytes(decoding_bytes(SHAPE, rows, DECODING)) for rows in numbers]
    header = ["`rollout.sampling_rows`", *map(str, numbers)]
    return markdown(header, [["GB beside the weights, at most", *cells]])


def share_table() -> str:
    """Operations of a phase and their division, which does not depend on the number of GPUs."""
    rows = []
    for recipe in RECIPES:
        parts = phase_flops(recipe, PROMPTS[1])
        total = sum(parts)
        cells = [f"{part / PFLOP:.0f} ({part / total:.0%})" if part else "0" for part in parts]
        rows.append([recipe.name, *cells, f"{total / PFLOP:.0f}"])
    header = ("PFLOP (share)", "rollouts", "old", "reference", "updates", "together")
    return markdown(header, rows)


def time_table() -> str:
    """Seconds of a phase at the assumed rate."""
    rows = []
    for recipe in RECIPES:
        for processes, prompts in PROMPTS.items():
            rate = processes * PEAK * 1e12 * UTILISATION
            seconds = [part / rate for part in phase_flops(recipe, prompts)]
            cells = [f"{part:.2g}" if part < 10 else f"{part:.0f}" for part in seconds]
            numbers = [str(processes), str(prompts * GROUP_SIZE)]
            rows.append([recipe.name, *numbers, *cells, f"{sum(seconds):.0f}"])
    header = ("s", "GPUs", "completions", "rollouts", "old", "reference", "updates", "phase")
    return markdown(header, rows)


def exchange_table() -> str:
    """Under FSDP: what a forward pass brings into a GPU, against what it computes meanwhile."""
    layers = BF16 * SHAPE.layers * SHAPE.layer_parameters
    rows = []
    for processes, link in LINKS.items():
        completions = PROMPTS[processes] * GROUP_SIZE // processes
        received = layers * (processes - 1) / processes
        computed = layer_flops(SHAPE, completions, DECODING.context) / (PEAK * 1e12 * UTILISATION)
        rows.append(
            [
                f"{processes} GPUs, {completions} completions each",
                gigabytes(received),
                str(link),
                f"{received / GB / link:.2f}",
                f"{computed:.2f}",
            ]
        )
    header = ("a pass of decoding", "GB received", "GB/s assumed", "s to receive", "s to compute")
    return markdown(header, rows)


TABLES = {
    "stored": stored_table,
    "gpu": gpu_table,
    "activations": activation_table,
    "decoding": decoding_table,
    "shares": share_table,
    "times": time_table,
    "exchange": exchange_table,
}


def main() -> None:
    """Print every table under its name."""
    for name, table in TABLES.items():
        print(f"{name}\n\n{table()}\n")


if __name__ == "__main__":
    main()
