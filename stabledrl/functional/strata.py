"""How many tokens each draw hides, where draws share their randomness, and how they are averaged.

The proxies that estimate J = Σ_{S≠∅} Σ_{k∈S} log p_k(S) / (|S|·C(L,|S|)) differ in the joint law of
the numbers of hidden tokens; each number by itself stays uniform, which is why they are unbiased.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def stratified_counts(
    length: Int[Tensor, " sample"], uniform: Float[Tensor, " sample"], draws: int
) -> Int[Tensor, "draw sample"]:
    """m_j = 1 + ⌊L·frac(u + j/K)⌋, j = 0…K−1: K numbers spread over {1…L}, each of them uniform.

    With K = L every number occurs once. In float64 and as (u·L + j·L/K) mod L, so that strata whose
    borders are whole numbers are exact. A completion without tokens gives 0.
    """
    total = length.clamp(min=1).double()
    draw = torch.arange(draws, dtype=torch.float64, device=length.device)[:, None]
    place = (uniform.double() * total + draw * total / draws) % total
    return torch.minimum(1 + place.long(), length)


def coupled_counts(
    length: Int[Tensor, " sample"],
    uniform: Float[Tensor, "draw sample"],
    row: Int[Tensor, " sample"],
    rows: int,
) -> Int[Tensor, "draw sample"]:
    """l = ⌊k + b·(L+1)/B⌋ mod (L+1), k = ⌊u·(L+1)⌋: numbers on {0…L} spread over the B rows.

    Rows b = 0…B−1 with the same u; each number is uniform on {0…L}. ESPO, arXiv 2512.03759; its
    code rounds half to even instead, which gives row B/2 some numbers twice and others never where
    L + 1 is odd.
    """
    levels = length + 1
    first = torch.minimum((uniform.double() * levels).long(), length)
    return (first + row * levels // rows) % levels


def both_sides(
    hidden: Bool[Tensor, "draw sample position"], counted: Bool[Tensor, "sample position"]
) -> Bool[Tensor, "side sample position"]:
    """Counted tokens of K masks, then of their K complements: what each of 2K inputs scores."""
    return torch.cat([hidden & counted, ~hidden & counted])


def mean_weight(
    scored: Bool[Tensor, "draw sample position"], total: Int[Tensor, " sample"]
) -> Float[Tensor, "draw sample position"]:
    """Weights by which Σ weight·log p is the mean over draws of total/m · Σ_scored log p.

    m is the number of scored tokens of the draw; one that scores none weighs 0. With total = L and
    uniform m on {1…L} the sum estimates J; so it does with total = L + 1 and m on {0…L}.
    """
    factor = total / scored.sum(-1).clamp(min=1) / len(scored)
    return scored * factor[..., None]


def independent_levels(
    draws: int, samples: int, blocks: int, generator: torch.Generator
) -> Float[Tensor, "draw sample block"]:
    """A uniform number on [0, 1) for every block of every draw."""
    return torch.rand(draws, samples, blocks, generator=generator)


def shared_levels(
    draws: int, samples: int, blocks: int, generator: torch.Generator
) -> Float[Tensor, "draw sample block"]:
    """One for all blocks of a draw: a completion is then noisy throughout, or hardly anywhere."""
    return torch.rand(draws, samples, 1, generator=generator).expand(-1, -1, blocks)


def stratified_levels(
    draws: int, samples: int, blocks: int, generator: torch.Generator
) -> Float[Tensor, "draw sample block"]:
    """u_jb = frac(u + j/K + b/(K·B)): draws of a block spread evenly, blocks in between.

    One u for each sample; each number is uniform on [0, 1) by itself.
    """
    uniform = torch.rand(samples, generator=generator, dtype=torch.float64)
    draw = torch.arange(draws, dtype=torch.float64)[:, None, None] / draws
    block = torch.arange(blocks, dtype=torch.float64) / (draws * blocks)
    return (uniform[:, None] + draw + block) % 1
