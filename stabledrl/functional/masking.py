"""Which completion tokens count, and which of them a draw hides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

import torch
from annotated_types import Ge, Gt, Lt
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
    counted: Bool[Tensor, "*#draw sample position"],
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
    length: Int[Tensor, "*#shape"], uniform: Float[Tensor, "*shape"]
) -> Int[Tensor, "*shape"]:
    """m = 1 + floor(u·L): a number of masked tokens uniform on {1..L} for u uniform on [0, 1)."""
    count = 1 + (uniform * length).long()
    return torch.minimum(count, length)  # float32 can round u·L up to L


Hidden: TypeAlias = tuple[
    Bool[Tensor, "draw sample position"], Bool[Tensor, "draw sample prompt_position"] | None
]
# (counted tokens, real prompt tokens, number of draws, generator) -> what of the completion is
# hidden, and what of the prompt (None: it stays as it is). What does not count (after the end
# token) is always hidden, never scored.
Masking: TypeAlias = Callable[[Tensor, Tensor, int, torch.Generator], Hidden]


def uniform(
    counted: Bool[Tensor, "sample position"],
    prompt: Bool[Tensor, "sample prompt_position"],
    draws: int,
    generator: torch.Generator,
) -> Hidden:
    """m ~ U{1..L} counted tokens in uniformly random places (LLaDA, arXiv 2502.09992, eq. 6).

    The prompt stays as it is.
    """
    samples, positions = counted.shape
    device = counted.device
    levels = torch.rand(draws, samples, generator=generator).to(device)
    noise = torch.rand(draws, samples, positions, generator=generator).to(device)
    count = uniform_counts(counted.sum(-1), levels)
    return place_uniformly(counted, count, noise) | ~counted, None


def block_random(
    counted: Bool[Tensor, "sample position"],
    prompt: Bool[Tensor, "sample prompt_position"],
    draws: int,
    generator: torch.Generator,
    *,
    block_length: Annotated[int, Gt(0)],
    perturbation: Annotated[float, Ge(0), Lt(1)] = 0.15,
) -> Hidden:
    """One block in the making, as a sampler meets it: SPG, arXiv 2510.09541; StableDRL's code.

    A block is drawn uniformly among those with counted tokens (which are the first L). Of its n
    counted tokens U{1..n} are hidden, in uniformly random places; everything after it is hidden;
    before it, prompt included, every token is hidden with the probability `perturbation`, so that
    the model does not lean on a context free of errors. Hidden counted tokens are scored wherever
    they are. Padding of the prompt is never hidden.
    """
    samples, positions = counted.shape
    device = counted.device
    levels = torch.rand(2, draws, samples, generator=generator).to(device)
    noise = torch.rand(2, draws, samples, positions, generator=generator).to(device)
    prompt_noise = torch.rand(draws, *prompt.shape, generator=generator).to(device)
    blocks = (counted.sum(-1) + block_length - 1) // block_length
    chosen = (uniform_counts(blocks, levels[0]) - 1)[..., None]
    block = torch.arange(positions, device=device) // block_length
    inside = (block == chosen) & counted
    hidden = place_uniformly(inside, uniform_counts(inside.sum(-1), levels[1]), noise[0])
    perturbed = (block < chosen) & (noise[1] < perturbation)
    mask = hidden | perturbed | (block > chosen) | ~counted
    return mask, (prompt_noise < perturbation) & prompt
