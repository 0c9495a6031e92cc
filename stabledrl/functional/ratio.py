"""Likelihoods as importance ratios: log-ratio d and score ℓ at a ratio level, and the guarded exp.

    d_i = s · (L̂_θ(y_i|x) − L̂_old(y_i|x)),   ℓ_i = s · score(y_i|x; θ),   ρ_i = exp(d_i)

`s` is the ratio level: `sequence` (s = 1), `per_token` (s = 1/|y_i|) or `token` (one d per token).
The three `*_log_ratio` functions share one signature, and so do the three `*_score` functions, so
that a level can be swapped for another. Log-ratios are always detached and float32; scores carry
the gradient.
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stabledrl.declarations import declares
from stabledrl.functional.reduce import masked_sum

EXPONENT_LIMIT = 20.0  # exp(20) = 4.9e8: gradients of such a sample are huge, yet finite in float32


def sequence_log_ratio(
    value: Float[Tensor, "group member"],
    old_value: Float[Tensor, "group member"],
    length: Int[Tensor, "group member"],
) -> Float[Tensor, "group member 1"]:
    """Log-ratio of whole completions, s = 1.

    Formula: d = L̂_θ − L̂_old, in nats per completion (GRPO-style sequence ratio; StableDRL,
    arXiv 2603.06743). `length` is unused at this level. Detached, float32.
    """
    return _difference(value, old_value).unsqueeze(-1)


def per_token_log_ratio(
    value: Float[Tensor, "group member"],
    old_value: Float[Tensor, "group member"],
    length: Int[Tensor, "group member"],
) -> Float[Tensor, "group member 1"]:
    """Log-ratio of completions per counted token, s = 1/|y|.

    Formula: d = (L̂_θ − L̂_old)/|y|, in nats per token (GSPO, arXiv 2507.18071, eq. 7; ESPO,
    arXiv 2512.03759). A completion without counted tokens has d = 0. Detached, float32.
    """
    return _per_token(_difference(value, old_value), length).unsqueeze(-1)


def token_log_ratio(
    value: Float[Tensor, "group member position"],
    old_value: Float[Tensor, "group member position"],
    length: Int[Tensor, "group member"],
) -> Float[Tensor, "group member position"]:
    """Log-ratio of every token, for estimators that have token values.

    Formula: d_k = L̂_θ,k − L̂_old,k, in nats (GRPO, arXiv 2402.03300, eq. 3; d1, arXiv 2504.12216).
    `length` is unused at this level. Detached, float32.
    """
    return _difference(value, old_value)


@declares(score_kind="summed")
def sequence_score(
    score: Float[Tensor, "group member"], length: Int[Tensor, "group member"]
) -> Float[Tensor, "group member 1"]:
    """Score of whole completions: ℓ = score, in nats. Keeps the gradient; float32 or better."""
    return _at_least_float32(score).unsqueeze(-1)


@declares(score_kind="per_token")
def per_token_score(
    score: Float[Tensor, "group member"], length: Int[Tensor, "group member"]
) -> Float[Tensor, "group member 1"]:
    """Score per counted token: ℓ = score/|y|, in nats per token; 0 for an empty completion.

    Keeps the gradient; float32 or better.
    """
    return _per_token(_at_least_float32(score), length).unsqueeze(-1)


@declares(score_kind="summed")
def token_score(
    score: Float[Tensor, "group member position"], length: Int[Tensor, "group member"]
) -> Float[Tensor, "group member position"]:
    """Score of every token: ℓ_k = score_k, in nats. Keeps the gradient; float32 or better."""
    return _at_least_float32(score)


def guarded_exp(
    log_value: Float[Tensor, "*shape"], limit: Annotated[float, Gt(0)] = EXPONENT_LIMIT
) -> Float[Tensor, "*shape"]:
    """Exponential of a clamped exponent, always finite unless the input is NaN.

    Formula: exp(clip(x, −limit, limit)). The clamp comes *before* exp: clamping an infinite result
    would leave a finite value with a NaN gradient. NaN stays NaN, so that the guard sees it.
    """
    return log_value.clamp(-limit, limit).exp()


def relative_exp(
    log_value: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], dim: tuple[int, ...]
) -> Float[Tensor, "*shape"]:
    """Exponentials relative to the largest one along `dim`: in [0, 1], whatever their scale.

    Formula: exp(x_i − max_j x_j) where the mask is True (the maximum runs over those), else 0.
    For expressions that do not depend on a common scale; no clamping is needed. NaN stays NaN.
    """
    counted = torch.where(mask, log_value, -torch.inf)
    largest = counted.amax(dim, keepdim=True)
    # Nothing counts, or every weight is 0: −inf − (−inf) would be NaN, −inf − 0 gives the 0.
    return (counted - torch.where(largest == -torch.inf, 0, largest)).exp()


def clamped_count(
    log_value: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    limit: Annotated[float, Gt(0)] = EXPONENT_LIMIT,
) -> Float[Tensor, ""]:
    """Number of counted entries that `guarded_exp` clamps: Σ 1[|x| > limit] over the mask."""
    return masked_sum((log_value.abs() > limit).float(), mask)


def _difference(
    value: Float[Tensor, "*shape"], old_value: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """value − old_value, subtracted in float32 (bfloat16 would round −512.3 to −512), detached."""
    return value.detach().float() - old_value.detach().float()


def _per_token(
    value: Float[Tensor, "group member"], length: Int[Tensor, "group member"]
) -> Float[Tensor, "group member"]:
    """value/|y|, 0 where |y| = 0."""
    return torch.where(length > 0, value / length.clamp(min=1), 0)


def _at_least_float32(value: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The value in float32, or in float64 if it already is."""
    return value.to(torch.promote_types(value.dtype, torch.float32))
