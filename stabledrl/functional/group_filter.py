"""Group filters: which groups of a phase are worth learning from.

Every function takes (reward, solved) [group, member], the reward NaN and the sample not looked at
where there was no verdict, and returns which groups are kept [group]. A dropped group is treated as
one without any verdict: it leaves the loss, and the number of groups that the loss is a mean over.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float
from torch import Tensor

from stabledrl.functional.advantage import centered
from stabledrl.functional.reduce import masked_mean

Reward: TypeAlias = Float[Tensor, "group member"]
Solved: TypeAlias = Float[Tensor, "group member"]
Kept: TypeAlias = Bool[Tensor, " group"]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]


def none(reward: Reward, solved: Solved) -> Kept:
    """Every group is kept."""
    return torch.ones(len(reward), dtype=torch.bool, device=reward.device)


def accuracy_range(
    reward: Reward, solved: Solved, lowest: Share = 0.2, highest: Share = 0.8
) -> Kept:
    """Groups of which a share of `lowest` to `highest` is solved, bounds included.

    TraceRL, arXiv 2509.06949: prompts that are nearly always or hardly ever solved are left out of
    the update. A group without any verdict is dropped.
    """
    # in float64 the quotient 3/15 is the number that is written 0.2
    accuracy = masked_mean(solved.double(), ~reward.isnan(), -1)
    return (lowest <= accuracy) & (accuracy <= highest) & ~reward.isnan().all(-1)


def nonzero_std(reward: Reward, solved: Solved) -> Kept:
    """Groups whose rewards are not all equal: the others have no advantage.

    DAPO, arXiv 2503.14476, section 3.2 (dynamic sampling), in its plain form: what is dropped is
    not sampled again. The loss becomes a mean over the groups that have something to say.
    """
    return centered(reward).ne(0).any(-1)
