"""The yardstick: likelihoods by enumeration of all 2^L masks, for up to 16 counted tokens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from stabledrl.declarations import declares
from stabledrl.functional.blocks import block_sizes
from stabledrl.functional.enumeration import all_subsets, order_averaged_elbo
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


@declares(takes_blocks=True)
@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class Exact:
    """The order-averaged ELBO or the exact log-likelihood, in nats, from 2^L forward passes.

    Of a model that writes block by block the sum over its blocks, each given the ones before it;
    with blocks of one token that is the left-to-right log-likelihood.

    target: which of the two, a function of the log-probabilities of all subsets
    (`functional.enumeration`). rows: masks of one completion in a forward pass; the result does not
    depend on it, memory does, except where a gradient keeps the activations of all 2^L anyway.
    longest_completion: counted tokens at most, of a block where there are blocks.
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
        """Sample by sample, 2^L rows each, L the tokens of the largest block.

        Raises ValueError above 16 counted tokens in a block.
        """
        sizes = block_sizes(sequences.completion_block, sequences.completion_mask)
        if sizes.max() > self.longest_completion:
            raise ValueError(
                f"estimator=exact enumerates 2^L masks: L={int(sizes.max())} is above "
                f"{self.longest_completion}; shorten sampler.length or take another estimator"
            )
        value = torch.stack(
            [
                self._sample(policy, sequences[index : index + 1], size.tolist())
                for index, size in enumerate(sizes)
            ]
        )
        return Likelihood(value, value)

    def _sample(self, policy: Scorer, sequence: Sequences, sizes: list[int]) -> Tensor:
        """The target for one sample: the sum over its blocks, which are hidden side by side."""
        counted = sequence.completion_mask[0]
        hidden = ~counted.repeat(2 ** max(sizes), 1)
        begins = list(accumulate(sizes, initial=0))[:-1]
        for begin, size in zip(begins, sizes, strict=True):
            places = slice(begin, begin + size)
            hidden[: 2**size, places] = all_subsets(size).to(hidden.device)
        parts = []
        for mask in hidden.split(self.rows):
            rows = torch.zeros(len(mask), dtype=torch.long, device=mask.device)
            parts.append(policy.log_likelihood(sequence[rows], mask))
        table = torch.cat(parts)
        blocks = [
            self.target(table[: 2**size, begin : begin + size])
            for begin, size in zip(begins, sizes, strict=True)
        ]
        return torch.stack(blocks).sum()
