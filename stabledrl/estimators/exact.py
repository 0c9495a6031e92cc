"""The yardstick: likelihoods by enumeration of all 2^L masks, for up to 16 counted tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from stabledrl.functional.enumeration import all_subsets, order_averaged_elbo
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class Exact:
    """The order-averaged ELBO or the exact log-likelihood, in nats, from 2^L forward passes.

    target: which of the two, a function of the log-probabilities of all subsets
    (`functional.enumeration`). rows: masks of one completion in a forward pass; the result does not
    depend on it, memory does, except where a gradient keeps the activations of all 2^L anyway.
    longest_completion: counted tokens at most.
    """

    longest_completion: ClassVar[int] = 16
    varying_forwards: ClassVar[bool] = True

    target: Callable[[Tensor], Tensor] = order_averaged_elbo
    rows: Annotated[int, Gt(0)] = 4096

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """Nothing is random: no draws."""
        shape = (0, *sequences.completion_ids.shape)
        device = sequences.completion_ids.device
        return Corruption(
            torch.zeros(shape, dtype=torch.bool, device=device), torch.zeros(shape, device=device)
        )

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """Sample by sample, 2^L rows each. Raises ValueError above 16 counted tokens."""
        length = int(sequences.length.max())
        if length > self.longest_completion:
            raise ValueError(
                f"estimator=exact enumerates 2^L masks: L={length} is above "
                f"{self.longest_completion}; shorten sampler.length or take another estimator"
            )
        samples = [sequences[index : index + 1] for index in range(len(sequences))]
        value = torch.stack([self._sample(policy, sample) for sample in samples])
        return Likelihood(value, value)

    def _sample(self, policy: Scorer, sequence: Sequences) -> Tensor:
        """The target for one sample."""
        length = int(sequence.length)
        hidden = ~sequence.completion_mask.repeat(2**length, 1)
        hidden[:, :length] = all_subsets(length).to(hidden.device)
        parts = []
        for mask in hidden.split(self.rows):
            parts.append(policy.log_likelihood(sequence, mask[:, None])[:, 0, :length])
        return self.target(torch.cat(parts))
