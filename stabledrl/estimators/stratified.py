"""The masked-diffusion ELBO with numbers of hidden tokens spread over {1…L}."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from stabledrl.estimators.draws import weighted_likelihood
from stabledrl.functional.masking import place_uniformly
from stabledrl.functional.strata import mean_weight, stratified_counts
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Stratified:
    """L̂ = mean over K draws of (L/m_j)·Σ_masked log p, m_j = 1 + ⌊L·frac(u + j/K)⌋. In nats.

    Unbiased for the order-averaged ELBO J, as `elbo`, with less variance: one draw hides few tokens
    and another many. With K = 1 it is `elbo`.

    draws: K.
    """

    draws: Annotated[int, Gt(0)] = 2

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """K masks per sample, from one u each."""
        counted = sequences.completion_mask
        uniform = torch.rand(len(sequences), generator=generator).to(counted.device)
        noise = torch.rand((self.draws, *counted.shape), generator=generator).to(counted.device)
        count = stratified_counts(sequences.length, uniform, self.draws)
        hidden = place_uniformly(counted, count, noise)
        return Corruption(hidden | ~counted, mean_weight(hidden, sequences.length))

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """One forward pass over K·S rows."""
        return weighted_likelihood(policy, sequences, corruption)
