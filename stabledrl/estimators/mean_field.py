"""One forward pass with everything hidden: the mean-field proxy of d1 (arXiv 2504.12216), §3.2."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Lt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from stabledrl.declarations import declares
from stabledrl.estimators.draws import weighted_token_likelihood
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


@declares(token_values=True, takes_blocks=True)
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MeanField:
    """L̂ = Σ_k log p(y_k | completion fully masked, prompt tokens masked with probability p).

    In nats, with token values. Biased: tokens are scored independently of each other.

    prompt_mask_probability: p, drawn anew for every evaluation (d1: 0.15); 0 for models that write
    block by block, of which a whole block is hidden behind the clean ones.
    """

    prompt_mask_probability: Annotated[float, Ge(0), Lt(1)] = 0.15

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """The whole completion is hidden; only the prompt mask is random."""
        counted = sequences.completion_mask
        everything = torch.ones_like(counted)[None]
        if not self.prompt_mask_probability:
            return Corruption(everything, counted.float()[None])
        noise = torch.rand(sequences.prompt_ids.shape, generator=generator)
        hidden = noise.to(counted.device) < self.prompt_mask_probability
        return Corruption(everything, counted.float()[None], hidden[None])

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """One forward pass over S rows."""
        return weighted_token_likelihood(policy, sequences, corruption)
