"""The ELBO from a mask and its complement: ESPO (arXiv 2512.03759)."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from stabledrl.estimators.draws import weighted_likelihood
from stabledrl.functional.masking import place_uniformly
from stabledrl.functional.strata import both_sides, coupled_counts, mean_weight
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Coupled:
    """L̂ = mean over K pairs of ½·[(L+1)/l·Σ_masked log p + (L+1)/(L−l)·Σ_complement log p].

    In nats. A mask hides l ~ U{0…L} of the L tokens, its complement the others; an empty sum is 0.
    Unbiased for the order-averaged ELBO J. Every token is scored once per pair; the l of a group's
    completions are spread over {0…L}.

    draws: K, pairs of mask and complement; each costs two rows.
    """

    draws: Annotated[int, Gt(0)] = 1

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """2K masks per sample, from one k per group and pair."""
        counted = sequences.completion_mask
        sample = torch.arange(len(sequences))
        groups = -(-len(sequences) // group_size)  # the last one may have fewer members
        uniform = torch.rand(self.draws, groups, generator=generator)[:, sample // group_size]
        noise = torch.rand((self.draws, *counted.shape), generator=generator).to(counted.device)
        row = (sample % group_size).to(counted.device)
        uniform = uniform.to(counted.device)
        count = coupled_counts(sequences.length, uniform, row, group_size)
        scored = both_sides(place_uniformly(counted, count, noise), counted)
        return Corruption(scored | ~counted, mean_weight(scored, sequences.length + 1))

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """One forward pass over up to 2K·S rows."""
        return weighted_likelihood(policy, sequences, corruption)
