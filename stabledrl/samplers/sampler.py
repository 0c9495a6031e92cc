"""What is asked of a sampler."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from stabledrl.policy import Policy
from stabledrl.types import Completions


@runtime_checkable
class Sampler(Protocol):
    """Completes prompts (structural: any class with these will do)."""

    @property
    def length(self) -> int:
        """Tokens of a completion."""
        ...

    def greedy(self) -> Sampler:
        """The same decoder at temperature 0: what evaluation uses."""
        ...

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        """All the randomness of `samples` completions, in sample order, one row for each."""
        ...

    def __call__(
        self, policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, uniform: Tensor
    ) -> Completions:
        """Complete left-padded prompts with the rows of randomness that are theirs."""
        ...
