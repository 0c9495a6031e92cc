"""Speed and memory of an 8B model on one GPU: rollout, likelihood and update.

    python benchmarks/gpu.py                # needs a CUDA GPU with 80 GB or more
    python benchmarks/gpu.py --tiny         # seconds on a CPU; proves that the script runs, no more

A model of LLaDA-8B's sizes with random weights is built on the device in bfloat16; nothing is
fetched. Its completions never end early, so all of them cost the same. Prints Markdown with the
card, the date and the settings. TFLOP/s are of benchmarks/cost.py's formulas over wall time; what
activation checkpointing computes again takes time and is not counted. Shares are of the card's
published peak; of a card that is not in the table here nothing is guessed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cost import LLADA_8B, Decoding, Shape
from benchmarks.memory import BF16, stored_full
from benchmarks.speed import Measured, Settings, measure, sampler_of

# TFLOP/s in bfloat16 without sparsity, from NVIDIA's data sheets, by torch.cuda.get_device_name().
# Whole names: another form factor, or a slice (MIG), is slower under nearly the same name.
PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100-PCIE-40GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA H100 80GB HBM3": 989,  # SXM
    "NVIDIA H100 PCIe": 756,
    "NVIDIA H200": 989,  # SXM
    "NVIDIA B200": 2250,
}
TINY = Shape(hidden_size=64, layers=2, heads=4, feedforward_size=192, vocabulary=512)
FULL = Settings(LLADA_8B, Decoding(200, 256, 32, 128), 32, 1, 3, True, False)
SMALL = Settings(TINY, Decoding(8, 16, 8, 8), 2, 1, 1, True, False)


def share_of_peak(rate: float, card: str) -> str:
    """TFLOP/s as a share of the published peak, in words."""
    return f"{rate / PEAKS[card]:.1%}" if card in PEAKS else "peak unknown"


def table(rows: list[Measured], card: str) -> str:
    """The Markdown table."""
    lines = [
        "| part | s | tokens/s | TFLOP/s | share of the card's peak | peak memory, GB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        rate = row.flops / row.seconds / 1e12
        memory = "not measured" if row.memory is None else f"{row.memory / 1e9:.1f}"
        lines.append(
            f"| {row.name} | {row.seconds:.3g} | {row.tokens / row.seconds:.0f} | {rate:.3g} "
            f"| {share_of_peak(rate, card)} | {memory} |"
        )
    return "\n".join(lines)


def description(settings: Settings, card: str) -> str:
    """What was run, where and when, and what memory the weights alone are to take."""
    shape, decoding = settings.shape, settings.decoding
    stored = stored_full(shape, BF16)
    weights, gradients, moments = (
        f"{it / 1e9:.3g}" for it in (stored.weights, stored.gradients, stored.moments)
    )
    return (
        f"{card}, torch {torch.__version__}, {date.today():%Y-%m-%d}\n\n"
        f"Model: {shape.parameters:,} random parameters in bfloat16 (hidden {shape.hidden_size}, "
        f"layers {shape.layers}, heads {shape.heads}, feed-forward {shape.feedforward_size}, "
        f"vocabulary {shape.vocabulary}). Calculated: weights {weights} + gradients {gradients} + "
        f"AdamW {moments} = {stored.kept / 1e9:.3g} GB.\n"
        f"Rollout: {settings.completions} completions together, prompt {decoding.prompt_length}, "
        f"length {decoding.length}, block {decoding.block_length}, {decoding.steps} passes; tokens "
        "of completions.\n"
        f"Likelihood and update: estimator elbo, {settings.draws} x {settings.completions} rows of "
        f"{decoding.context} tokens. Update: forward, backward, clipping, AdamW (states in "
        f"bfloat16); activation checkpointing {on(settings.activation_checkpointing)}, compile "
        f"{on(settings.compile)}."
    )


def on(switch: bool) -> str:
    """In words."""
    return "on" if switch else "off"


def positive(text: str) -> int:
    """A whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def parsed(arguments: list[str] | None) -> tuple[bool, Settings]:
    """Whether --tiny was given, and what to run; ends with a line for sizes that do not fit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a small model; may run on a CPU")
    for name in ("hidden-size", "layers", "heads", "feedforward-size", "vocabulary"):
        parser.add_argument(f"--{name}", type=positive, help="of the model")
    for name in ("prompt-length", "length", "block-length", "steps"):
        parser.add_argument(f"--{name}", type=positive, help="of a completion")
    for name in ("completions", "draws", "repeats"):
        parser.add_argument(f"--{name}", type=positive)
    parser.add_argument("--activation-checkpointing", action=argparse.BooleanOptionalAction)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
    given = {key: it for key, it in vars(parser.parse_args(arguments)).items() if it is not None}
    tiny = given.pop("tiny")
    try:
        settings = overridden(SMALL if tiny else FULL, given)
        sampler_of(settings.decoding)
    except ValueError as error:
        parser.error(" ".join(str(error).split()))
    return tiny, settings


def overridden(settings: Settings, given: dict[str, Any]) -> Settings:
    """The settings with what the command line says, each where it belongs."""
    changed: dict[str, Any] = {key: it for key, it in given.items() if hasattr(settings, key)}
    parts: dict[str, Any] = {"shape": settings.shape, "decoding": settings.decoding}
    for name, part in parts.items():
        own = {key: it for key, it in given.items() if hasattr(part, key)}
        changed[name] = replace(part, **own)
    return replace(settings, **changed)


def main(arguments: list[str] | None = None) -> None:
    """Print what was run and the table."""
    tiny, settings = parsed(arguments)
    if not (torch.cuda.is_available() or tiny):
        sys.exit("benchmarks/gpu.py: there is no CUDA GPU here; --tiny runs a small model on a CPU")
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    card = torch.cuda.get_device_name(device) if on_gpu else "a CPU"
    print(description(settings, card), end="\n\n", flush=True)
    try:
        print(table(measure(settings, device), card))
    except torch.OutOfMemoryError:
        sys.exit(
            f"benchmarks/gpu.py: it does not fit into the memory of {card}: fewer --completions"
        )


if __name__ == "__main__":
    main()
