"""The ELBO by quadrature over the masking rate: GDPO (arXiv 2510.08554)."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from stabledrl.estimators.draws import weighted_likelihood
from stabledrl.functional.masking import place_uniformly
from stabledrl.functional.quadrature import (
    Division,
    gauss_legendre,
    quadrature_weight,
    realised_rate,
)
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class Quadrature:
    """L̂ = Σ_k w_k·(L/m_k)·Σ_masked log p over Gauss–Legendre nodes t_k, m_k = max(1, ⌊t_k·L⌋).

    In nats. How many tokens are hidden is not random, only which: less noise than `elbo`, and a
    bias, the error of the quadrature.

    nodes: how many t_k. draws: masks per node, averaged. divide_by: how many tokens a node hides
    and what its sum is divided by (`functional.quadrature`).
    """

    nodes: Annotated[int, Gt(0)] = 2
    draws: Annotated[int, Gt(0)] = 1
    divide_by: Division = realised_rate

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """nodes·draws masks per sample, those of one node side by side."""
        counted = sequences.completion_mask
        node, node_weight = (item.to(counted.device) for item in gauss_legendre(self.nodes))
        of_draw = torch.arange(self.nodes, device=counted.device).repeat_interleave(self.draws)
        count, rate = self.divide_by(node[of_draw], sequences.length)
        shape = (self.nodes * self.draws, *counted.shape)
        noise = torch.rand(shape, generator=generator).to(counted.device)
        hidden = place_uniformly(counted, count, noise)
        weight = quadrature_weight(hidden, node_weight[of_draw] / self.draws, rate)
        return Corruption(hidden | ~counted, weight)

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """One forward pass over nodes·draws·S rows."""
        return weighted_likelihood(policy, sequences, corruption)
