"""Reductions that ignore what a mask excludes, and the log-probability of given tokens."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def masked_sum(
    value: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    dim: int | tuple[int, ...] | None = None,
) -> Float[Tensor, ...]:
    """Sum of the values where the mask is True.

    Formula: Σ_k value_k · 1[mask_k].
    Shapes: value and mask alike; `dim` is summed away (None: every axis).
    Values under a False mask, even inf or NaN, change neither the sum nor any gradient: they are
    replaced before the sum, because inf · 0 would be NaN. An empty sum is 0.
    """
    return torch.where(mask, value, 0).sum(dim)


def masked_mean(
    value: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    dim: int | tuple[int, ...] | None = None,
) -> Float[Tensor, ...]:
    """Mean of the values where the mask is True; 0 where it is True nowhere.

    Formula: Σ_k value_k · 1[mask_k] / Σ_k 1[mask_k].
    Shapes: value and mask alike; `dim` is averaged away (None: every axis).
    """
    # A count of 0 comes with a sum of 0, so raising it to 1 gives the 0 that is wanted.
    return masked_sum(value, mask, dim) / mask.sum(dim).clamp(min=1)


def token_log_probability(
    logits: Float[Tensor, "*position vocabulary"],
    targets: Int[Tensor, "*position"],
) -> Float[Tensor, "*position"]:
    """Log-probability of each target token under its logits, in nats.

    Formula: log softmax(logits)[target].
    Shapes: logits [..., V], targets [...] with values in 0..V−1.
    Computed in float32 (float64 logits stay float64): log-ratios are differences of sums of these,
    and bfloat16 keeps only three digits. Raises RuntimeError for a target outside the vocabulary.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    log_probability = torch.log_softmax(logits, dim=-1, dtype=dtype)
    return log_probability.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
