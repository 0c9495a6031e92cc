"""The law of block_random masks: which block, how many tokens of it, what is perturbed before."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from stabledrl.functional.masking import block_random, uniform


def counted(*lengths: int, positions: int) -> Tensor:
    """Samples of which the first so many tokens count."""
    return torch.arange(positions) < torch.tensor(lengths)[:, None]


def real(*lengths: int, positions: int) -> Tensor:
    """Left-padded prompts of so many tokens."""
    return counted(*lengths, positions=positions).flip(1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shares(masks: Tensor) -> dict[tuple[int, ...], float]:
    seen = Counter(tuple(row) for row in masks.int().tolist())
    return {mask: number / len(masks) for mask, number in seen.items()}


# 5 standard deviations of a share of one half among 20,000
DRAWS, TOLERANCE = 20_000, 0.018


@pytest.mark.parametrize("q", [0.0, 0.25])
def test_masks_follow_their_law(q: float) -> None:
    # L = 3 of 5, blocks of 2: {0, 1} and {2, 3} have counted tokens, {4} has none; 1/2 each.
    # Block {0, 1}: m is 1 or 2, 1/2 each; one of two places; token 2 comes after it. So 101 and 011
    # have 1/2·1/2·1/2 = 1/8 each, 111 has 1/4. Block {2, 3}: m = 1 is token 2, and 0 and 1 before
    # it are perturbed with q each: 001 ½(1−q)², 101 and 011 ½q(1−q), 111 ½q².
    law = {
        (1, 0, 1): 1 / 8 + q * (1 - q) / 2,
        (0, 1, 1): 1 / 8 + q * (1 - q) / 2,
        (1, 1, 1): 1 / 4 + q * q / 2,
        (0, 0, 1): (1 - q) ** 2 / 2,
    }
    assert sum(law.values()) == pytest.approx(1)
    masks, _ = block_random(
        counted(3, positions=5),
        real(2, positions=2),
        DRAWS,
        generator(),
        block_length=2,
        perturbation=q,
    )
    assert masks[..., 3:].all()  # what does not count is always hidden
    assert shares(masks[:, 0, :3]) == pytest.approx(law, abs=TOLERANCE)


@pytest.mark.parametrize("block_length", [4, 100])
def test_one_block_is_uniform_masking(block_length: int) -> None:
    # m uniform on 1..4, so 1/4 for the full set, and 1/4·1/C(4, m) for the others
    four = counted(4, positions=5)
    blocks, _ = block_random(
        four, real(2, positions=2), DRAWS, generator(), block_length=block_length
    )
    numbers = Counter(blocks[:, 0, :4].sum(-1).tolist())
    for m in range(1, 5):
        assert numbers[m] / DRAWS == pytest.approx(1 / 4, abs=TOLERANCE)
    plain, _ = uniform(four, real(2, positions=2), DRAWS, generator(1))
    assert shares(blocks[:, 0]) == pytest.approx(shares(plain[:, 0]), abs=TOLERANCE)


def test_samples_of_different_lengths_choose_among_their_own_blocks() -> None:
    # L = 0, 1, 4, 7 of 7 with blocks of 3: 0, 1, 2, 3 blocks with counted tokens, the last with
    # none, 1, 1, 1 of them. Without perturbation the first hidden token shows the block.
    counts = counted(0, 1, 4, 7, positions=7)
    masks, _ = block_random(
        counts, real(1, 2, 3, 4, positions=4), DRAWS, generator(), block_length=3, perturbation=0.0
    )
    assert (masks | counts).all()
    assert masks[:, :2].all()  # nothing that counts, or one token, which then is always hidden
    first = masks.int().argmax(-1) // 3
    for sample, blocks in ((2, 2), (3, 3)):
        for block in range(blocks):
            share = (first[:, sample] == block).float().mean()
            assert float(share) == pytest.approx(1 / blocks, abs=TOLERANCE)
    # everything after the chosen block is hidden
    after = torch.arange(7) // 3 > first[..., None]
    assert masks[after].all()


def test_prompt_and_earlier_tokens_are_perturbed_with_their_probability() -> None:
    # 10 draws of 20 prompts of 100 tokens (and as much padding): 5·√(.15·.85/20,000) = 0.013
    prompt = real(*[100] * 20, positions=200)
    masks, hidden = block_random(
        counted(*[100] * 20, positions=100), prompt, 10, generator(), block_length=10
    )
    assert hidden is not None
    assert not hidden[:, ~prompt].any()
    assert float(hidden[:, prompt].float().mean()) == pytest.approx(0.15, abs=0.013)
    assert len({tuple(row.tolist()) for row in hidden.flatten(0, 1)}) == 200  # anew each time
    # A block that is hidden whole can be the chosen one with m = 10, or come after it; what lies
    # before the last block with anything shown in it lies before the chosen one, or in it.
    shown = ~masks.view(10, 20, 10, 10)
    place = torch.arange(10)
    last = torch.where(shown.any(-1), place, -1).amax(-1, keepdim=True)
    before = place < last
    # ≥ 5,000 tokens: 5·√(.15·.85/5000) = 0.025
    assert int(before.sum()) * 10 > 5_000
    assert float((~shown[before]).float().mean()) == pytest.approx(0.15, abs=0.025)


def test_nothing_is_perturbed_at_probability_zero() -> None:
    _, hidden = block_random(
        counted(3, positions=3),
        real(3, positions=4),
        9,
        generator(),
        block_length=1,
        perturbation=0.0,
    )
    assert hidden is not None
    assert not hidden.any()


def test_the_draws_are_the_generators_and_nobody_elses() -> None:
    before = torch.random.get_rng_state()
    arguments = counted(2, 5, positions=6), real(3, 4, positions=4), 3
    one, other, third = (
        block_random(*arguments, generator(seed), block_length=2) for seed in (0, 0, 1)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])
    assert not torch.equal(one[1], third[1])
