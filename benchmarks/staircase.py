"""What scoring all blocks in one pass saves: staircase attention against a pass for every block.

    python benchmarks/staircase.py [--repeats 5] [--threads 1] [--prompt 128] [--completion 256]

Forward and backward of the likelihood of a few completions under a small model with random weights,
both ways in turn in one process; the best time of each counts. The passes of `block_separate` are
over the text up to the end of their block, without a cache. MB are what autograd keeps for the
gradient, which is most of the peak. The second table compares draws behind one clean stream with a
row for each.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from stabledrl.attention.block_separate import BlockSeparate  # noqa: E402
from stabledrl.attention.staircase import Staircase, pack  # noqa: E402
from stabledrl.attention.views import Attention  # noqa: E402
from stabledrl.estimators.block_elbo import BlockElbo  # noqa: E402
from stabledrl.models.tiny_block import initialise  # noqa: E402
from stabledrl.policy import Policy  # noqa: E402
from stabledrl.types import Corruption, Likelihood, Sequences  # noqa: E402

SAMPLES = 2
WAYS: dict[str, Attention] = {"staircase": Staircase(), "block_separate": BlockSeparate()}


class OneByOne:
    """The same estimator with a row for every draw: the clean stream is read K times."""

    def __init__(self, estimator: BlockElbo) -> None:
        self.estimator = estimator

    def __call__(self, policy: Policy, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """Sum over draws scored side by side as rows."""
        draws = len(corruption.mask)
        every = torch.arange(len(sequences)).repeat(draws)
        flat = Corruption(
            corruption.mask.flatten(0, 1)[None], corruption.weight.flatten(0, 1)[None]
        )
        found = self.estimator(policy, sequences[every], flat)
        value = found.value.view(draws, -1).sum(0)
        return Likelihood(value, value)


def setting(
    prompt: int, completion: int, block: int, draws: int
) -> tuple[Policy, Sequences, Corruption]:
    """A model of 3.3 M parameters, texts without end token, masks."""
    policy = initialise(256, 4, 4, 512, seed=0, block_length=block)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(4, 20, (SAMPLES, prompt + completion), generator=generator)
    real = torch.ones(SAMPLES, prompt, dtype=torch.bool)
    ids = text[:, prompt:]
    sequences = Sequences(
        text[:, :prompt], real, ids, torch.ones_like(ids) > 0, block=policy.blocks(real, completion)
    )
    return policy, sequences, BlockElbo(draws).draw(sequences, 1, generator)


def seconds(score: object, policy: Policy, sequences: Sequences, corruption: Corruption) -> float:
    """Of one forward and backward pass."""
    policy.zero_grad()
    start = time.perf_counter()
    score(policy, sequences, corruption).score.sum().backward()  # type: ignore[operator]
    return time.perf_counter() - start


def kept(policy: Policy, sequences: Sequences, corruption: Corruption) -> float:
    """MB that autograd holds at the end of a forward pass, the peak's larger part."""
    held: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in policy.parameters()}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        score = BlockElbo()(policy, sequences, corruption).score
    assert score.requires_grad
    return sum(held.values()) / 1e6


def compare_ways(prompt: int, completion: int, block: int, repeats: int) -> None:
    """Prints one row of the first table."""
    policy, sequences, corruption = setting(prompt, completion, block, 1)
    best = dict.fromkeys(WAYS, float("inf"))
    for _ in range(repeats):
        for way, attention in WAYS.items():
            policy.attention = attention
            best[way] = min(best[way], seconds(BlockElbo(), policy, sequences, corruption))
    blocks = completion // block
    ratio = best["block_separate"] / best["staircase"]
    memory = []
    for attention in WAYS.values():
        policy.attention = attention
        memory.append(kept(policy, sequences, corruption))
    columns = pack(sequences, corruption.mask, policy.facts.mask_token_id).ids.shape[1]
    print(
        f"| {block} | {blocks} | {best['staircase']:.3f} | {best['block_separate']:.3f} | "
        f"{ratio:.1f} | {blocks / 3:.1f} | {memory[0]:.0f} | {memory[1]:.0f} | {columns} | "
        f"{2 * (prompt + completion)} |"
    )


def compare_draws(prompt: int, completion: int, block: int, draws: int, repeats: int) -> None:
    """Prints one row of the second table."""
    policy, sequences, corruption = setting(prompt, completion, block, draws)
    estimator = BlockElbo(draws)
    ways = {"together": estimator, "apart": OneByOne(estimator)}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, score in ways.items():
            best[name] = min(best[name], seconds(score, policy, sequences, corruption))
    print(
        f"| {block} | {draws} | {best['together']:.3f} | {best['apart']:.3f} | "
        f"{best['apart'] / best['together']:.2f} |"
    )


def main() -> None:
    """Both tables, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--completion", type=int, default=256)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(
        f"P={given.prompt} R={given.completion}, {SAMPLES} completions, float32, "
        f"{given.threads} thread(s), torch {torch.__version__}, {platform.processor() or 'CPU'}, "
        f"{datetime.date.today()}\n"
    )
    print(
        "| block | K | staircase s | separate s | times as fast | K/3 | staircase MB | "
        "separate MB | columns | of two copies |\n|" + "---:|" * 10
    )
    for block in (32, 16):
        compare_ways(given.prompt, given.completion, block, given.repeats)
    print(
        "\n| block | draws | one clean stream s | one for each draw s | times as fast |\n|"
        + "---:|" * 5
    )
    for block in (32, 4):
        for draws in (2, 4, 8):
            compare_draws(given.prompt, given.completion, block, draws, given.repeats)


if __name__ == "__main__":
    main()
