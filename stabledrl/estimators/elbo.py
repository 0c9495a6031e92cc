"""The masked-diffusion ELBO by Monte Carlo: LLaDA (arXiv 2502.09992), eq. 3 and 6; UniGRPO."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from stabledrl.declarations import declares
from stabledrl.estimators.block_elbo import BlockElbo
from stabledrl.estimators.draws import averaged_draws, weighted_likelihood
from stabledrl.functional.masking import Masking, uniform
from stabledrl.functional.strata import independent_levels
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


@declares(takes_blocks=True)
@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class Elbo:
    """L̂ = mean over K draws of (L/m)·Σ_{masked k} log p(y_k | corrupted), m uniform on {1..L}.

    Unbiased for the order-averaged ELBO J with masking=uniform (method: LLaDA, eq. 6, integrated
    over m). With masking=block_random it no longer is: m then counts the masked tokens of the
    chosen block, of those after it and of those perturbed before it, and neither m nor the places
    follow the law behind J; what the sampler would meet is scored instead. In nats.

    Of a model that writes block by block it is the sum of the blocks' ELBOs, each with an m of its
    own (`BlockElbo` with `independent_levels`); it takes no other masking than uniform.

    draws: K. masking: which tokens a draw hides.
    """

    draws: Annotated[int, Gt(0)] = 2
    masking: Masking = uniform

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """K masks per sample; each scored token weighs L/(K·m).

        ValueError for another masking than uniform of a model that writes block by block.
        """
        if sequences.block is not None:
            if getattr(self.masking, "func", self.masking) is not uniform:
                raise ValueError(
                    "masking: a model that writes block by block takes masking=uniform"
                )
            return BlockElbo(self.draws, independent_levels).draw(sequences, group_size, generator)
        return averaged_draws(self.masking, self.draws, sequences, generator)

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """One forward pass over K·S rows."""
        return weighted_likelihood(policy, sequences, corruption)
