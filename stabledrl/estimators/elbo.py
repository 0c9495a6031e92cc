"""The masked-diffusion ELBO by Monte Carlo: LLaDA (arXiv 2502.09992), eq. 3 and 6; UniGRPO."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from stabledrl.estimators.draws import averaged_draws, weighted_likelihood
from stabledrl.functional.masking import Masking, uniform
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class Elbo:
    """L̂ = mean over K draws of (L/m)·Σ_{masked k} log p(y_k | corrupted), m uniform on {1..L}.

    Unbiased for the order-averaged ELBO J with masking=uniform (method: LLaDA, eq. 6, integrated
    over m). With masking=block_random it no longer is: m then counts the masked tokens of the
    chosen block, of those after it and of those perturbed before it, and neither m nor the places
    follow the law behind J; what the sampler would meet is scored instead. In nats.

    draws: K. masking: which tokens a draw hides.
    """

    draws: Annotated[int, Gt(0)] = 2
    masking: Masking = uniform

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """K masks per sample; each scored token weighs L/(K·m)."""
        return averaged_draws(self.masking, self.draws, sequences, generator)

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """One forward pass over K·S rows."""
        return weighted_likelihood(policy, sequences, corruption)
