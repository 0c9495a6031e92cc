"""The ELBO of a model that writes block by block: BD3-LM (arXiv 2503.09573), eq. 4; StableDRL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from stabledrl.declarations import declares
from stabledrl.estimators.draws import weighted_likelihood
from stabledrl.functional.blocks import block_sizes, block_weight, place_in_blocks
from stabledrl.functional.masking import uniform_counts
from stabledrl.functional.strata import stratified_levels
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences

# (draws, samples, blocks, generator) -> a uniform number on [0, 1) for each of them
Levels = Callable[[int, int, int, torch.Generator], Tensor]


@declares(takes_blocks=True)
@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class BlockElbo:
    """L̂ = Σ_blocks mean over K draws of (n_b/m_b)·Σ_masked of b log p(y_k | blocks < b, noisy b).

    m_b uniform on {1…n_b}, n_b the counted tokens of block b. Unbiased for Σ_b J_b, J_b the
    order-averaged ELBO of a block given the clean ones before it. With blocks of one token it is
    the left-to-right log-likelihood, without any noise; for a model without blocks, whose
    completion is one, it is `elbo` or `stratified`. In nats.

    draws: K, which share the clean stream of one forward pass. levels: how the numbers of masked
    tokens of blocks and draws hang together (`functional.strata`); each is uniform by itself.
    """

    draws: Annotated[int, Gt(0)] = 1
    levels: Levels = stratified_levels

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """K masks per sample."""
        counted = sequences.completion_mask
        block = sequences.completion_block
        sizes = block_sizes(block, counted)
        samples, blocks = sizes.shape
        levels = self.levels(self.draws, samples, blocks, generator).to(counted.device)
        noise = torch.rand((self.draws, *counted.shape), generator=generator).to(counted.device)
        hidden = place_in_blocks(counted, block, uniform_counts(sizes, levels), noise)
        return Corruption(hidden | ~counted, block_weight(hidden, block, sizes))

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """One forward pass over S rows, if the attention is `staircase`."""
        return weighted_likelihood(policy, sequences, corruption)
