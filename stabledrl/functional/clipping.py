"""Clipping: how a log-ratio becomes a weight, and which samples give no gradient.

    w_i, k_i = clipping(d_i, A_i)          ρ_i = exp(d_i)

Every function takes `(log_ratio, advantage, *numbers)` and returns `(log w, keep)`; your own with
this signature will do as well. Weights stay in log space, because self-normalization needs no exp
of a large number then. A NaN log-ratio gives a NaN weight and is kept, so that the guard sees it.
Shapes: log_ratio [group, member, unit] in nats, advantage [group, member] in units of reward.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import torch
from annotated_types import Gt, Le
from jaxtyping import Bool, Float
from torch import Tensor

LogRatio: TypeAlias = Float[Tensor, "group member unit"]
Advantage: TypeAlias = Float[Tensor, "group member"]
Clipped: TypeAlias = tuple[Float[Tensor, "group member unit"], Bool[Tensor, "group member unit"]]

Positive: TypeAlias = Annotated[float, Gt(0)]
Fraction: TypeAlias = Annotated[float, Gt(0), Le(1)]  # 1 − fraction is a lower bound on ρ


def none(log_ratio: LogRatio, advantage: Advantage) -> Clipped:
    """Vanilla importance sampling: w = ρ, every sample kept."""
    return log_ratio, torch.ones_like(log_ratio, dtype=torch.bool)


def uniform(log_ratio: LogRatio, advantage: Advantage) -> Clipped:
    """The null baseline: w = 1 whatever the ratio (even a NaN one), every sample kept.

    REINFORCE on the likelihood proxy (SPG, arXiv 2510.09541; wd1, arXiv 2507.08838).
    """
    return torch.zeros_like(log_ratio), torch.ones_like(log_ratio, dtype=torch.bool)


def conditional(
    log_ratio: LogRatio,
    advantage: Advantage,
    epsilon_low: Fraction = 0.2,
    epsilon_high: Positive = 0.2,
) -> Clipped:
    """PPO and GRPO: raw weights, no gradient where the ratio already went the advantage's way.

    Formula: w = ρ; k = not (A > 0 and ρ > 1+ε_high, or A < 0 and ρ < 1−ε_low): the gradient of
    min(ρA, clip(ρ, 1−ε_low, 1+ε_high)·A). PPO, arXiv 1707.06347, eq. 7; DAPO, arXiv 2503.14476,
    eq. 8 (ε_high 0.28). A < 0 with ρ ≫ 1 passes unbounded: the bypass (arXiv 2603.06743).
    """
    sign = advantage.unsqueeze(-1)
    above = (sign > 0) & (log_ratio > _log(1 + epsilon_high, log_ratio))
    below = (sign < 0) & (log_ratio < _log(1 - epsilon_low, log_ratio))
    return log_ratio, ~(above | below)


def dual(
    log_ratio: LogRatio,
    advantage: Advantage,
    epsilon_low: Fraction = 0.2,
    epsilon_high: Positive = 0.2,
    cap: Annotated[float, Gt(1)] = 3.0,
) -> Clipped:
    """Dual-clip PPO: as `conditional`, and no gradient either for A < 0 where ρ > cap.

    Formula: the gradient of max(min(ρA, clip(ρ)A), cap·A) for A < 0. Dual-clip PPO,
    arXiv 1912.09729.
    """
    log_weight, keep = conditional(log_ratio, advantage, epsilon_low, epsilon_high)
    beyond = (advantage.unsqueeze(-1) < 0) & (log_ratio > _log(cap, log_ratio))
    return log_weight, keep & ~beyond


def capped_negative(
    log_ratio: LogRatio,
    advantage: Advantage,
    epsilon_low: Fraction = 0.2,
    epsilon_high: Positive = 0.2,
) -> Clipped:
    """Control with only the bypass closed: `conditional`, but negatives weigh at most 1+ε_high.

    Formula: w = min(ρ, 1+ε_high) where A < 0, else ρ; k as in `conditional`. Ours: it tells
    unbounded negatives from dropped positives as the cause of a collapse.
    """
    log_weight, keep = conditional(log_ratio, advantage, epsilon_low, epsilon_high)
    capped = log_weight.clamp(max=_log(1 + epsilon_high, log_ratio))
    return torch.where(advantage.unsqueeze(-1) < 0, capped, log_weight), keep


def unconditional(log_ratio: LogRatio, advantage: Advantage, epsilon: Positive = 5.0) -> Clipped:
    """StableDRL: the weight is clipped whatever the sign of the advantage, every sample kept.

    Formula: w = clip(ρ, max(0, 1−ε), 1+ε); k = True. StableDRL, arXiv 2603.06743 (ε = 5: a cap on
    outliers, not a trust region). With ε ≥ 1 there is no lower bound (log 0 = −inf).
    """
    low, high = _log(max(0.0, 1 - epsilon), log_ratio), _log(1 + epsilon, log_ratio)
    return log_ratio.clamp(low, high), torch.ones_like(log_ratio, dtype=torch.bool)


def _log(bound: float, like: Tensor) -> Float[Tensor, ""]:
    """Logarithm of a bound on ρ, in the type of the log-ratio; log 0 = −inf, which bounds nothing.

    Python's own log would raise for 0.
    """
    return like.new_tensor(bound).log()
