"""What can be known of an objective before training: bias, noise, bypass, spread of gradients.

Everything is measured at θ = θ_old, where a log-ratio is estimation noise and nothing else. Shapes:
[repetition R, group N, member G, unit T]; a repetition is an independent draw of all masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stabledrl.functional.objective import bypass_rate
from stabledrl.functional.ratio import EXPONENT_LIMIT

Clipping = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Accuracy:
    """An estimator against the exact value, in nats per completion.

    exact: mean exact value. bias: mean of L̂ − exact; bias_error: its standard error over mask draws
    (the completions are given). std: root of the mean variance of L̂ over draws.
    """

    completions: int
    repetitions: int
    exact: float
    bias: float
    bias_error: float
    std: float


@dataclass(frozen=True)
class Evaluations:
    """One evaluation of an estimator on whole groups: how it scatters and what it costs.

    std: root of the mean variance of L̂ over draws, in nats. group_std: the same of L̂ minus its
    group's mean, times √(G/(G−1)): what is left where members are compared. It is std where masks
    of members are independent, more or less where strata tie them. forwards: rows the model scored
    per completion, counted. time: that of the scoring, in forward passes of the completion, each
    measured beside it.
    """

    completions: int
    repetitions: int
    std: float
    group_std: float
    forwards: float
    time: float


@dataclass(frozen=True)
class Noise:
    """Log-ratios at θ = θ_old.

    std: of d over counted entries, in nats (`train/ratio/noise_std`). bypass_rate: share of counted
    entries with A < 0 and ρ > 1+ε (`train/bypass_rate`); bypass_error: its standard error over
    groups. entries: how many d were drawn.
    """

    std: float
    bypass_rate: float
    bypass_error: float
    entries: int


@dataclass(frozen=True)
class Spread:
    """Gradient norms over mask draws: mean, standard deviation, largest over median."""

    mean: float
    std: float
    peak: float

    @property
    def relative(self) -> float:
        """std/mean: what rules of different scale are compared by; 0 where there is no gradient."""
        return self.std / self.mean if self.mean > 0 else 0.0


def accuracy(
    value: Float[Tensor, "repetition sample"], exact: Float[Tensor, " sample"]
) -> Accuracy:
    """Bias and variance of R ≥ 2 independent estimates of every sample.

    Formula: bias = mean(L̂ − J); error = √(Σ_i s_i²/R)/S with s_i² the variance of sample i.
    """
    repetitions, samples = value.shape
    difference = value.double() - exact.double()
    variance = difference.var(0)  # of the difference: subtracting J first keeps the digits
    return Accuracy(
        completions=samples,
        repetitions=repetitions,
        exact=float(exact.double().mean()),
        bias=float(difference.mean()),
        bias_error=float((variance.sum() / repetitions).sqrt() / samples),
        std=float(variance.mean().sqrt()),
    )


def group_spread(value: Float[Tensor, "repetition group member"]) -> tuple[float, float]:
    """std and group_std of `Evaluations` from R ≥ 2 evaluations; equal for groups of one."""
    value = value.double()
    size = value.shape[-1]
    std = float(value.var(0).mean().sqrt())
    if size == 1:
        return std, std
    within = (value - value.mean(-1, keepdim=True)).var(0).mean() * size / (size - 1)
    return std, float(within.sqrt())


def noise(
    log_ratio: Float[Tensor, "repetition group member unit"],
    advantage: Float[Tensor, "group member"],
    mask: Bool[Tensor, "group member unit"],
    epsilon: float,
) -> Noise:
    """Standard deviation of d and predicted bypass rate, from the empirical distribution of d.

    mask: the entries that count. epsilon: that of ρ > 1+ε. The rate is the one of
    `functional.objective.bypass_rate`, over all repetitions. Its error counts whole groups, because
    members share a prompt and an advantage baseline: √(N/(N−1)·Σ_g (b_g − p·n_g)²)/Σ_g n_g; NaN for
    a single group.
    """
    repetitions, groups = log_ratio.shape[:2]
    counted = log_ratio[:, mask].double()
    rate = bypass_rate(
        log_ratio.flatten(0, 1),
        advantage.repeat(repetitions, 1),
        epsilon,
        mask.repeat(repetitions, 1, 1),
    )
    through = (log_ratio > math.log1p(epsilon)) & (advantage[:, :, None] < 0) & mask
    entries = mask.sum((1, 2)) * repetitions
    residual = through.sum((0, 2, 3)).double() - float(rate) * entries
    correction = groups / (groups - 1) if groups > 1 else math.nan
    error = (correction * residual.square().sum()).sqrt() / entries.sum().clamp(min=1)
    std = float(counted.std(correction=0)) if counted.numel() else 0.0
    return Noise(std, float(rate), float(error), counted.numel())


def gradient_norm(loss: Float[Tensor, ""], parameters: Sequence[Tensor]) -> float:
    """Norm of the gradient with respect to all parameters; the graph is kept for another loss."""
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    present = [gradient for gradient in gradients if gradient is not None]
    return float(torch.nn.utils.get_total_norm(present))


def spread(norms: Float[Tensor, " draw"]) -> Spread:
    """Mean, sample standard deviation and max/median; the last is 1 where all norms are 0."""
    norms = norms.double()
    median = float(norms.quantile(0.5))
    largest = float(norms.max())
    peak = largest / median if median > 0 else (1.0 if largest == 0 else math.inf)
    return Spread(float(norms.mean()), float(norms.std()), peak)


def ordered(spreads: Mapping[str, Spread]) -> list[str]:
    """Rules by relative spread, the steadiest first; by name where they are equal."""
    return sorted(spreads, key=lambda name: (spreads[name].relative, name))


def leaves_negatives_unbounded(clipping: Clipping) -> bool:
    """Whether A < 0 with a ratio as large as can be keeps its gradient and its whole weight."""
    log_ratio = torch.full((1, 1, 1), EXPONENT_LIMIT)
    log_weight, keep = clipping(log_ratio, torch.full((1, 1), -1.0))
    return bool((keep & (log_weight == log_ratio)).all())
