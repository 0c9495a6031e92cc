"""The completion scored in the states it was decoded through: TraceRL (arXiv 2509.06949)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Gt
from jaxtyping import Bool, Float, Int
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from stabledrl.declarations import declares
from stabledrl.estimators.draws import weighted_token_likelihood
from stabledrl.functional.blocks import per_block
from stabledrl.functional.masking import dense_rank
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


@declares(replays_decoding=True, token_values=True, takes_blocks=True)
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Trajectory:
    """L̂ = Σ_t Σ_{k committed in group t} log p(y_k | what stood before group t), in nats.

    The recorded decoding is replayed: with shrink = 1 every token is scored in the very state in
    which the sampler chose it, tokens after the end token included, so that L̂ is the
    log-probability of its choices at temperature 1 without guidance (of the order, as far as that
    does not depend on the tokens). With draws = K only K groups are scored, chosen at random for
    each completion and weighted by (number of groups)/K: unbiased, and as cheap as K draws of an
    ELBO. Of a model that writes block by block, the groups of all blocks are scored side by side:
    copy t holds group t of every block, or the t-th of those chosen in it.

    shrink: neighbouring passes scored from the state before the first of them (TraceRL: 1 for block
    diffusion, 8 for full attention): as many times fewer groups, and a bias.
    draws: K; None scores all groups, and nothing is random.
    """

    shrink: Annotated[int, Gt(0)] = 1
    draws: Annotated[int, Gt(0)] | None = None

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """One mask per group of passes: what was not committed before it."""
        if sequences.step is None:
            raise ValueError(
                "estimator=trajectory replays a decoding, and these completions were not decoded"
            )
        counted, block = sequences.completion_mask, sequences.completion_block
        rank = dense_rank(sequences.step, counted)
        first = per_block(rank.masked_fill(~counted, rank.shape[1]), block, "amin")
        group = (rank - first).clamp(min=0) // self.shrink
        number = int(group.masked_fill(~counted, 0).max()) + 1
        groups = torch.arange(number, device=group.device)[:, None, None]
        scored = (group == groups) & counted
        never = torch.iinfo(sequences.step.dtype).max
        begin = per_block(torch.where(scored, sequences.step, never), block, "amin")
        mask, weight = sequences.step >= begin, scored.float()
        if self.draws is None:
            return Corruption(mask, weight)
        noise = torch.rand(counted.shape, generator=generator).to(group.device)
        chosen, available = self._chosen(scored, block, noise)
        share = available / available.clamp(min=1, max=self.draws)
        return Corruption(mask.gather(0, chosen), weight.gather(0, chosen) * share)

    def _chosen(
        self,
        scored: Bool[Tensor, "group sample position"],
        block: Int[Tensor, "sample position"],
        noise: Float[Tensor, "sample position"],
    ) -> tuple[Int[Tensor, "draw sample position"], Int[Tensor, "sample position"]]:
        """The K groups of least noise of every block, and how many groups the block has."""
        filled = per_block(scored.long(), block, "amax") > 0
        # a group's noise is that of a token: of the first one of its block, of the second, …
        place = torch.arange(block.shape[1], device=block.device).expand_as(block)
        groups = torch.arange(len(scored), device=block.device)[:, None, None]
        at = (per_block(place, block, "amin") + groups).clamp(max=block.shape[1] - 1)
        own = noise.expand_as(at).gather(2, at)
        return own.masked_fill(~filled, 2.0).argsort(0)[: self.draws], filled.sum(0)

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """One forward pass over as many rows as there are scored groups."""
        likelihood = weighted_token_likelihood(policy, sequences, corruption)
        return likelihood if self.draws is None else replace(likelihood, token_value=None)
