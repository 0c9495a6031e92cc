"""Normalization: how weights become the constants that multiply advantage and score.

    c_i = k_i·w_i/Z        loss = −(1/N) Σ_groups Σ_i c_i·A_i·ℓ_i

Every function takes `(log_weight, mask, length, completion_length)` and returns w/Z, 0 where the
mask is False; your own with this signature will do as well. The keep flag k is applied afterwards:
a dropped sample still counts in Z. Shapes: log_weight and mask [group, member, unit], length
[group, member] in counted tokens; N = groups, G = members of a group with a verdict (those with
any True in the mask). The 1/N of the loss is outside, so the functions that normalise over the
whole optimiser step carry a 1/N in Z to undo it. A group nobody is left in gives 0, never NaN;
a NaN weight stays NaN. Those whose Z holds a length declare which ℓ they are made for, sums over
tokens or per token: with the other one the length would be divided out twice, or not at all.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stabledrl.declarations import declares
from stabledrl.functional.ratio import guarded_exp, relative_exp

LogWeight: TypeAlias = Float[Tensor, "group member unit"]
Mask: TypeAlias = Bool[Tensor, "group member unit"]
Length: TypeAlias = Int[Tensor, "group member"]
Weight: TypeAlias = Float[Tensor, "group member unit"]


def group(log_weight: LogWeight, mask: Mask, length: Length, completion_length: int) -> Weight:
    """Mean over the group: Z = G. GRPO, arXiv 2402.03300, eq. 3 (with per-token ratios: GSPO)."""
    return _quotient(_weight(log_weight, mask), _members(mask))


@declares(clamps_exponent=False)
def self_normalized(
    log_weight: LogWeight, mask: Mask, length: Length, completion_length: int
) -> Weight:
    """Self-normalized importance sampling within the group: Z = Σ_j w_j.

    Formula: softmax of log w over the group's entries (members and units). StableDRL,
    arXiv 2603.06743. In log space and relative to the largest weight, so no exponent is clamped.
    The coefficients are convex: no common scale of the weights reaches the update.
    """
    weight = relative_exp(log_weight, mask, (1, 2))
    return _quotient(weight, weight.sum((1, 2), keepdim=True))


@declares(needs_whole_step=True, clamps_exponent=False)
def batch_self(log_weight: LogWeight, mask: Mask, length: Length, completion_length: int) -> Weight:
    """Self-normalization over the whole optimiser step: Z = (1/N)·Σ_j w_j over all groups.

    Ablation of StableDRL (arXiv 2603.06743). With the 1/N of the loss the coefficients sum to 1.
    """
    weight = relative_exp(log_weight, mask, (0, 1, 2))
    return _quotient(weight, weight.sum() / weight.shape[0])


@declares(score_kind="summed")
def sequence_token_mean(
    log_weight: LogWeight, mask: Mask, length: Length, completion_length: int
) -> Weight:
    """Mean over tokens, then over the group: Z = G·|y_i|. Original GRPO, arXiv 2402.03300, eq. 3.

    For ℓ that are sums of tokens (ratio levels `token` and `sequence`).
    """
    return _quotient(_weight(log_weight, mask), _members(mask) * length.unsqueeze(-1))


@declares(score_kind="summed")
def fixed_length(
    log_weight: LogWeight, mask: Mask, length: Length, completion_length: int
) -> Weight:
    """Mean over the group and a constant length: Z = G·R, R the completion length asked for.

    For ℓ that sum tokens. Dr.GRPO, arXiv 2503.20783 (no bias towards short right and long wrong
    answers); TraceRL, arXiv 2509.06949.
    """
    return _quotient(_weight(log_weight, mask), _members(mask) * completion_length)


@declares(needs_whole_step=True, score_kind="summed")
def token(log_weight: LogWeight, mask: Mask, length: Length, completion_length: int) -> Weight:
    """Mean over all tokens of the optimiser step: Z = (1/N)·Σ_j |y_j|, for ℓ that sum tokens.

    Formula: with the 1/N of the loss, Σ_tokens w·A·ℓ / Σ_j |y_j|. DAPO, arXiv 2503.14476, eq. 8;
    d1, arXiv 2504.12216. (method.md leaves the 1/N out; the published losses need it.)
    """
    return _quotient(_weight(log_weight, mask), _tokens_per_group(mask, length))


@declares(needs_whole_step=True, score_kind="per_token")
def length_weighted(
    log_weight: LogWeight, mask: Mask, length: Length, completion_length: int
) -> Weight:
    """Mean over completions weighted by length: Z = (1/N)·Σ_j |y_j| / |y_i|, for ℓ per token.

    Formula: with the 1/N of the loss, Σ_i |y_i|·w·A·ℓ / Σ_j |y_j|. SPG, arXiv 2510.09541.
    (method.md leaves the 1/N out; the published losses need it.)
    """
    weight = _weight(log_weight, mask) * length.unsqueeze(-1)
    return _quotient(weight, _tokens_per_group(mask, length))


def unnormalized(
    log_weight: LogWeight, mask: Mask, length: Length, completion_length: int
) -> Weight:
    """Plain sum over the group: Z = 1. wd1, arXiv 2507.08838."""
    return _weight(log_weight, mask)


def _weight(log_weight: LogWeight, mask: Mask) -> Weight:
    """w = exp(log w) with a guarded exponent, 0 where the mask is False."""
    return torch.where(mask, guarded_exp(log_weight), 0)


def _members(mask: Mask) -> Int[Tensor, "group 1 1"]:
    """G: members of each group that have a verdict."""
    return mask.any(-1, keepdim=True).sum(-2, keepdim=True)


def _tokens_per_group(mask: Mask, length: Length) -> Float[Tensor, ""]:
    """(1/N)·Σ_j |y_j| over the members with a verdict."""
    return torch.where(mask.any(-1), length, 0).sum() / length.shape[0]


def _quotient(weight: Weight, denominator: Tensor) -> Weight:
    """weight/denominator, 0 where the denominator is 0 (nobody left); NaN stays NaN."""
    empty = denominator == 0
    return torch.where(empty, 0, weight / torch.where(empty, 1, denominator))
