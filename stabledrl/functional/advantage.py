"""Advantages: how much better than its group a completion was, in units of reward.

Every function takes rewards [group, member], NaN meaning "no verdict", and returns advantages of
the same shape: 0 for members without verdict, which leave mean and standard deviation too. Equal
rewards give exactly 0, and so does a single verdict.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import torch
from annotated_types import Ge, Gt
from jaxtyping import Float, Int
from torch import Tensor

Reward: TypeAlias = Float[Tensor, "group member"]
Advantage: TypeAlias = Float[Tensor, "group member"]


def centered(reward: Reward) -> Advantage:
    """Reward minus the mean of its group: A_i = r_i − mean(r).

    Dr.GRPO, arXiv 2503.20783; the choice of StableDRL's released settings.
    """
    return _centered(reward)[0]


def standardized(
    reward: Reward,
    epsilon: Annotated[float, Gt(0)] = 1e-4,
    sample_standard_deviation: bool = True,
) -> Advantage:
    """Centered reward in units of the group's standard deviation: A_i = (r_i − mean)/(std + ε).

    GRPO, arXiv 2402.03300, section 4.1. The deviation is within the group, never over the batch;
    it divides by (verdicts − 1), or by the verdicts if `sample_standard_deviation` is False.
    """
    difference, verdicts = _centered(reward)
    freedom = (verdicts - int(sample_standard_deviation)).clamp(min=1)
    deviation = (difference.square().sum(-1, keepdim=True) / freedom).sqrt()
    return difference / (deviation + epsilon)


def leave_one_out(reward: Reward) -> Advantage:
    """Reward minus the mean of the others: A_i = r_i − mean_{j≠i} r_j = G/(G−1)·(r_i − mean).

    RLOO, arXiv 2402.14740 (used by ESPO). G counts the members with a verdict.
    """
    difference, verdicts = _centered(reward)
    return difference * verdicts / (verdicts - 1).clamp(min=1)


def asymmetric(reward: Reward, negative_weight: Annotated[float, Ge(0)] = 0.0) -> Advantage:
    """Centered reward whose negative part is scaled: A_i = a_i if a_i > 0 else ω·a_i.

    Formula: a_i = r_i − mean(r); ω = `negative_weight`, 1 is `centered`, 0 learns from successes
    only. Ours; the reason is SPG's (arXiv 2510.09541): a likelihood proxy that is a lower bound
    says nothing about how unlikely a bad completion has become when it is pushed down.
    """
    advantage = centered(reward)
    return torch.where(advantage < 0, negative_weight * advantage, advantage)


def softmax(reward: Reward, temperature: Annotated[float, Gt(0)] = 1.0) -> Advantage:
    """Two distributions over the group, best minus worst: A = softmax(a/T) − softmax(−a/T).

    Formula: a_i = r_i − mean(r) (a softmax is the same without the mean); T = `temperature`, in
    units of reward. wd1, arXiv 2507.08838, with ψ = 1/T: its Σ softmax(a)·log π of the better
    completions less Σ softmax(−a)·log π of the worse ones is Σ A·log π. In [−1, 1], whatever the
    rewards. The published code takes the softmax over all rows of a device, we (and the paper) over
    the group.
    """
    difference, _ = _centered(reward)
    exponent = difference / temperature
    best, worst = (
        torch.where(reward.isnan(), -torch.inf, sign * exponent).softmax(-1) for sign in (1, -1)
    )
    return torch.where(reward.isnan(), 0, best - worst)  # NaN in a group without any verdict


def _centered(reward: Reward) -> tuple[Advantage, Int[Tensor, "group 1"]]:
    """Reward minus group mean (0 without verdict), and the number of verdicts per group."""
    verdict = ~reward.isnan()
    verdicts = verdict.sum(-1, keepdim=True)
    # The mean of seven times 0.1 is not 0.1 in float32. Measured from the smallest reward, equal
    # rewards are all exactly 0, and so is their mean.
    smallest = torch.where(verdict, reward, torch.inf).amin(-1, keepdim=True)
    above = torch.where(verdict, reward - smallest, 0)
    mean = above.sum(-1, keepdim=True) / verdicts.clamp(min=1)
    return torch.where(verdict, above - mean, 0), verdicts
