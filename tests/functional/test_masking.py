"""Counted tokens, and the law of uniform masks."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from stabledrl.functional.masking import (
    counted_tokens,
    dense_rank,
    place_uniformly,
    uniform,
    uniform_counts,
)

E, F = 1, 9  # two end tokens
PROMPT = torch.ones(3, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("ids", "ends", "counted"),
    [
        ([5, 6, E, 7, 8], (E,), [1, 1, 1, 0, 0]),
        ([5, 6, 7, 8, 5], (E,), [1, 1, 1, 1, 1]),
        ([5, 6, 7, 8, E], (E,), [1, 1, 1, 1, 1]),
        ([E, E, E, E], (E,), [1, 0, 0, 0]),
        ([E, 5, E, 6], (E,), [1, 0, 0, 0]),
        ([5, F, 6, E], (E, F), [1, 1, 0, 0]),  # whichever comes first
        ([5, E, 6, F], (E, F), [1, 1, 0, 0]),
        ([5, F, 6, E], (E,), [1, 1, 1, 1]),
        ([5, E, 6], (), [1, 1, 1]),  # no end token at all
    ],
)
def test_tokens_count_up_to_and_including_the_first_end_token(
    ids: list[int], ends: tuple[int, ...], counted: list[int]
) -> None:
    assert counted_tokens(torch.tensor([ids]), ends).int().tolist() == [counted]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_subset_is_equally_likely(size: int) -> None:
    # All 24 orders of the noise of four positions, of which the first three count: each of the
    # C(3, size) subsets must come 24 / C(3, size) times.
    noise = torch.tensor(list(itertools.permutations([0.1, 0.2, 0.3, 0.4])))[:, None]
    counted = torch.tensor([[True, True, True, False]])
    placed = place_uniformly(counted, torch.full((24, 1), size), noise)
    seen = Counter(tuple(row) for row in placed[:, 0].tolist())
    assert len(seen) == math.comb(3, size)
    assert set(seen.values()) == {24 // math.comb(3, size)}
    assert all(sum(subset) == size and not subset[3] for subset in seen)


def test_more_than_there_are_hides_all_that_count() -> None:
    counted = torch.tensor([[True, True, False, False]])
    placed = place_uniformly(counted, torch.tensor([[4]]), torch.rand(1, 1, 4))
    assert placed[0].tolist() == counted.tolist()


@pytest.mark.parametrize("length", [1, 3, 7, 16])
def test_the_count_is_uniform(length: int) -> None:
    grid = (torch.arange(10 * length) + 0.5) / (10 * length)
    count = uniform_counts(torch.tensor([length]), grid[:, None])
    assert Counter(count[:, 0].tolist()) == dict.fromkeys(range(1, length + 1), 10)


def test_the_largest_uniform_number_never_exceeds_the_length() -> None:
    length = torch.arange(0, 2000)
    largest = torch.full((1, 2000), 1 - 2**-24)
    assert torch.equal(uniform_counts(length, largest)[0], length)


def test_masks_follow_their_law() -> None:
    # L = 3: P(m) = 1/3 and P(subset | m) = 1/C(3, m), so the six proper subsets have 1/9 each
    # and the full set 1/3. 5 standard deviations of a share of 1/3 among 18,000 are 0.018.
    draws = 18_000
    counted = counted_tokens(torch.tensor([[5, 6, E, 7]]), (E,))
    masks, prompt = uniform(counted, PROMPT[:1], draws, torch.Generator().manual_seed(0))
    assert prompt is None  # it stays as it is
    masks = masks[:, 0]
    assert masks[:, 3].all()  # what does not count is always hidden
    seen = Counter(tuple(row) for row in masks[:, :3].tolist())
    expected = {s: 1 / 9 for s in itertools.product([False, True], repeat=3) if 0 < sum(s) < 3}
    expected[(True, True, True)] = 1 / 3
    assert seen.keys() == expected.keys()
    for subset, probability in expected.items():
        assert seen[subset] / draws == pytest.approx(probability, abs=0.018)


def test_samples_of_different_lengths_mask_within_their_own() -> None:
    counted = counted_tokens(torch.tensor([[E, 5, 5, 5], [5, E, 5, 5], [5, 5, 5, 5]]), (E,))
    masks, _ = uniform(counted, PROMPT, 200, torch.Generator().manual_seed(0))
    hidden = (masks & counted).sum(-1)
    assert (masks | counted).all()
    assert hidden.amin(0).tolist() == [1, 1, 1]
    assert hidden.amax(0).tolist() == [1, 2, 4]


def test_the_global_random_state_is_not_moved() -> None:
    before = torch.random.get_rng_state()
    uniform(torch.ones(3, 5, dtype=torch.bool), PROMPT, 3, torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dense_rank_counts_smaller_values_among_the_counted() -> None:
    value = torch.tensor([[4, 0, 4, 7], [2, 9, 2, 0]])
    counted = torch.tensor([[True, True, True, True], [True, True, True, False]])
    # in the second row the 0 does not count, so that 2 is the smallest
    assert dense_rank(value, counted).tolist() == [[1, 0, 1, 2], [0, 1, 0, 0]]
