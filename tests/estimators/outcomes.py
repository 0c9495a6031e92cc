"""Exact expectations: every equally likely outcome of a draw as a sample of its own."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from stabledrl.types import Corruption, Sequences

PROMPT = 3


def sequences(length: int, positions: int, samples: int) -> Sequences:
    """Samples whose first `length` of `positions` completion tokens count."""
    counted = torch.arange(positions) < length
    return Sequences(
        torch.full((samples, PROMPT), 5),
        torch.ones(samples, PROMPT, dtype=torch.bool),
        torch.full((samples, positions), 6),
        counted.repeat(samples, 1),
    )


class Table:
    """A model that is nothing but its log-probabilities [subset of hidden tokens, token]."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Tensor:
        length = self.table.shape[1]
        scored = mask[..., :length]
        # what does not count is hidden wherever something is scored
        assert (mask[..., length:].all(-1) | ~mask.any(-1)).all()
        row = (scored * 2 ** torch.arange(length)).sum(-1)
        values = self.table.new_zeros(mask.shape)
        values[..., :length] = self.table[row] * scored
        return values


def random_table(length: int) -> Table:
    """Log-probabilities that depend on all that is hidden, in nats."""
    generator = torch.Generator().manual_seed(length)
    normal = torch.randn(2**length, length, generator=generator, dtype=torch.float64)
    return Table(-normal.square())


def orders(length: int, positions: int) -> Tensor:
    """Noise [outcome, position] of every order of the first `length` positions."""
    noise = torch.full((len(list(itertools.permutations(range(length)))), positions), 0.5)
    noise[:, :length] = torch.tensor(list(itertools.permutations(range(length)))) / length
    return noise


class Recorded:
    """A model that returns recorded log-probabilities [draw, sample, position]."""

    def __init__(self, corruption: Corruption, values: Tensor) -> None:
        # what is asked for: draws with any weight
        self.expected = corruption.mask & corruption.weight.any(-1, keepdim=True)
        self.values = values

    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Tensor:
        assert torch.equal(mask, self.expected)
        return self.values * (mask & sequences.completion_mask)


def scripted(monkeypatch: pytest.MonkeyPatch, *numbers: Tensor) -> None:
    """Makes the uniform numbers that are drawn these, one tensor after another."""
    left = list(numbers)

    def rand(*shape: object, generator: torch.Generator) -> Tensor:
        given = left.pop(0)
        wanted = shape[0] if isinstance(shape[0], tuple) else shape
        assert tuple(given.shape) == tuple(wanted)
        return given

    monkeypatch.setattr(torch, "rand", rand)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def total_weight(corruption: Corruption) -> Tensor:
    """Σ of the weights of every sample: L for a proxy that is exact for a constant log p."""
    return corruption.weight.sum((0, 2))
