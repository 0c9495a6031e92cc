"""Bounds from both sides: SPG (arXiv 2510.09541), the score of StableDRL's released code."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from stabledrl.estimators.draws import averaged_draws, masked_log_probability
from stabledrl.functional.evidence_upper_bound import evidence_upper_bound
from stabledrl.functional.masking import Masking, uniform
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class Sandwich:
    """Raises a lower bound where the advantage is positive, lowers an upper one where it is not.

    With ELBO̅ the mean over K draws of the mean log p(y_k | corrupted) over masked counted tokens
    and EUBO̅ of `functional.evidence_upper_bound`, both per token:

        value = score = L·ELBO̅        negative_score = L·(ω·EUBO̅ + (1 − ω)·ELBO̅)

    in nats, so that ratio=per_token has exactly the quantities of the released code. The value is
    `elbo`'s of the same masks. The K draws are needed together: with one, EUBO̅ is ELBO̅ plus a
    constant.

    draws: K. masking: which tokens a draw hides. beta: β of the upper bound. upper_bound_weight: ω.
    """

    draws: Annotated[int, Gt(0)] = 2
    masking: Masking = uniform
    beta: Annotated[float, Ge(1)] = 1.5
    upper_bound_weight: Annotated[float, Ge(0), Le(1)] = 0.5

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """K masks per sample; each scored token weighs L/(K·m) in the lower bound."""
        return averaged_draws(self.masking, self.draws, sequences, generator)

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """One forward pass over K·S rows."""
        values = masked_log_probability(policy, sequences, corruption)
        scored = corruption.mask & sequences.completion_mask
        lower = (corruption.weight * values).sum((0, 2))
        length = sequences.length
        upper = length * evidence_upper_bound(values, scored, length, self.beta)
        mixed = torch.lerp(lower, upper, self.upper_bound_weight)
        return Likelihood(lower, lower, negative_score=mixed)
