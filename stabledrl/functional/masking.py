"""Which completion tokens count, and which of them a draw hides."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def counted_tokens(
    completion_ids: Int[Tensor, "sample position"], end_token_ids: tuple[int, ...]
) -> Bool[Tensor, "sample position"]:
    """Tokens up to and including the first end token; all of them where there is none.

    `[5, 6, E, 7, 8] -> [1, 1, 1, 0, 0]`. With several end ids, whichever comes first.
    """
    ends = torch.isin(completion_ids, completion_ids.new_tensor(end_token_ids))
    ended_before = ends.cumsum(-1) - ends.long() > 0
    return ~ended_before


def dense_rank(
    value: Int[Tensor, "sample position"], counted: Bool[Tensor, "sample position"]
) -> Int[Tensor, "sample position"]:
    """How many different smaller values a row holds at counted positions.

    `[4, 0, 4, 7] -> [1, 0, 1, 2]`: numbers of steps without the gaps. Values are at least 0.
    """
    present = value.new_zeros(len(value), int(value.max()) + 1)
    present.scatter_reduce_(1, value, counted.to(value.dtype), "amax")
    return (present.cumsum(-1) - present).gather(1, value)


def place_uniformly(
    counted: Bool[Tensor, "sample position"],
    count: Int[Tensor, "draw sample"],
    noise: Float[Tensor, "draw sample position"],
) -> Bool[Tensor, "draw sample position"]:
    """Hide `count` of the counted tokens, every subset of that size equally likely.

    The tokens with the smallest noise among the counted ones are taken; independent uniform noise
    makes their set uniform. A count above the number of counted tokens hides all of them.
    """
    order = noise.masked_fill(~counted, float("inf")).argsort(dim=-1)
    rank = order.argsort(dim=-1)
    return (rank < count[..., None]) & counted


def uniform_counts(
    length: Int[Tensor, " sample"], uniform: Float[Tensor, "draw sample"]
) -> Int[Tensor, "draw sample"]:
    """m = 1 + floor(u·L): a number of masked tokens uniform on {1..L} for u uniform on [0, 1)."""
    count = 1 + (uniform * length).long()
    return torch.minimum(count, length)  # float32 can round u·L up to L


# (counted tokens, number of draws, generator) -> hidden tokens [draw, sample, position]; tokens
# that do not count (after the end token) are always hidden, never scored
Masking: TypeAlias = Callable[[Tensor, int, torch.Generator], Tensor]


def uniform(
    counted: Bool[Tensor, "sample position"], draws: int, generator: torch.Generator
) -> Bool[Tensor, "draw sample position"]:
    """m ~ U{1..L} counted tokens in uniformly random places (LLaDA, arXiv 2502.09992, eq. 6)."""
    samples, positions = counted.shape
    device = counted.device
    levels = torch.rand(draws, samples, generator=generator).to(device)
    noise = torch.rand(draws, samples, positions, generator=generator).to(device)
    count = uniform_counts(counted.sum(-1), levels)
    return place_uniformly(counted, count, noise) | ~counted
