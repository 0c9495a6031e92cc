"""The one loss, and the numbers that explain it. Shapes: [group N, member G, unit T].

loss = −(1/N) Σ_groups Σ_i c_i·A_i·ℓ_i
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from jaxtyping import Bool, Float
from torch import Tensor

from stabledrl.functional.ratio import relative_exp
from stabledrl.functional.reduce import masked_mean


def policy_loss(
    score: Float[Tensor, "group member unit"],
    advantage: Float[Tensor, "group member"],
    coefficient: Float[Tensor, "group member unit"],
) -> Float[Tensor, ""]:
    """Weighted score, averaged over groups: loss = −(1/N) Σ c·A·ℓ (StableDRL, arXiv 2603.06743).

    `score` ℓ carries the gradient; `coefficient` c is a constant for autograd. Where c·A is exactly
    0, value and gradient are exactly 0 even if the score is infinite or NaN (no inf · 0). A NaN
    coefficient makes the loss NaN, whatever its advantage. No groups give 0.
    """
    weight = coefficient.detach() * advantage.detach().unsqueeze(-1)
    counted = torch.where(weight == 0, 0, score)
    return -(weight * counted).sum() / max(1, score.shape[0])


def effective_sample_size(
    log_weight: Float[Tensor, "group member unit"], mask: Bool[Tensor, "group member unit"]
) -> Float[Tensor, " group"]:
    """Share of a group's entries that effectively contribute: (Σw)²/Σw²/n, between 1/n and 1.

    n is the number of counted entries (G at sequence level). Kish (1965). Computed relative to the
    largest weight, so nothing overflows. 0 for a group nobody is left in.
    """
    weight = relative_exp(log_weight, mask, (1, 2))
    entries = mask.sum((1, 2))
    squares = weight.square().sum((1, 2)) * entries
    return weight.sum((1, 2)).square() / torch.where(squares == 0, 1, squares)


def bypass_rate(
    log_ratio: Float[Tensor, "group member unit"],
    advantage: Float[Tensor, "group member"],
    epsilon: Annotated[float, Gt(0)],
    mask: Bool[Tensor, "group member unit"],
) -> Float[Tensor, ""]:
    """Share of counted entries with A < 0 and ρ > 1+ε: those `conditional` clipping lets through.

    The bypass of StableDRL (arXiv 2603.06743), whatever clipping is in use. 0 if nothing counts.
    """
    high = log_ratio > log_ratio.new_tensor(1 + epsilon).log()
    return masked_mean((high & (advantage.unsqueeze(-1) < 0)).float(), mask)


def clip_fractions(
    log_ratio: Float[Tensor, "group member unit"],
    log_weight: Float[Tensor, "group member unit"],
    keep: Bool[Tensor, "group member unit"],
    mask: Bool[Tensor, "group member unit"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Shares of counted entries a clipping dropped or re-weighted, with ρ < 1 and with ρ > 1.

    Formula: mean of 1[not k or log w ≠ d] · 1[d < 0], and the same with 1[d > 0]. Their sum is the
    share of the whole region (TRL's clip_ratio/low_mean, high_mean and region_mean). Works for any
    clipping; `uniform`, which replaces every ratio, counts every ρ ≠ 1.
    """
    clipped = ~keep | (log_weight != log_ratio)
    low = masked_mean((clipped & (log_ratio < 0)).float(), mask)
    high = masked_mean((clipped & (log_ratio > 0)).float(), mask)
    return low, high
