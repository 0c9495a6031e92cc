"""Splitting a batch changes memory, never a number: exact micro-batching of groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stabledrl.estimators.elbo import Elbo
from stabledrl.functional import clipping, normalization
from stabledrl.functional.kl import k2
from stabledrl.pairing import paired
from stabledrl.penalty import DivergencePenalty, sequence
from stabledrl.policy import Policy
from stabledrl.types import Batch, Scorer, Sequences
from tests.phases import (
    GROUPS,
    MEMBERS,
    Counting,
    algorithm,
    gradient,
    keyed,
    moved_policy,
    phase_reward,
    phase_sequences,
)
from tests.policies import tiny_policy

SAMPLES = GROUPS * MEMBERS


class Rows(Counting):
    """Counts the rows of every evaluation."""

    def __init__(self, scorer: Scorer) -> None:
        super().__init__(scorer)
        self.rows: list[int] = []

    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Tensor:
        self.rows.append(len(sequences))
        return super().log_likelihood(sequences, mask, prompt_mask)


def coupled_batch() -> tuple[Callable[..., object], Policy, Batch]:
    """A loss that couples all members of a group: self-normalized weights and a penalty."""
    chosen = algorithm(
        clipping=clipping.unconditional,
        normalization=normalization.self_normalized,
        penalty=DivergencePenalty(coefficient=0.3, divergence=k2, level=sequence),
    )
    old, policy = tiny_policy().double(), moved_policy(0.1).double()
    (batch,) = chosen.prepare(old, old, phase_sequences(), phase_reward(), 1, 1000, keyed)
    return chosen.loss, policy, batch


@pytest.mark.parametrize("rows", [1, 2, 5, 11])
def test_a_split_group_has_the_gradient_of_the_whole(rows: int) -> None:
    loss, policy, batch = coupled_batch()
    whole = gradient(policy, lambda: loss(policy, batch).loss)
    split = gradient(policy, lambda: loss(policy, batch, rows).loss)
    assert whole.abs().max() > 1e-3
    torch.testing.assert_close(split, whole, rtol=1e-9, atol=1e-12)


def test_at_most_so_many_samples_are_computed_together_and_each_twice() -> None:
    loss, policy, batch = coupled_batch()
    counting = Rows(policy)
    value = loss(counting, batch, 5).loss
    # two draws of each sample; twelve samples are 5 + 5 + 2
    assert counting.rows == [10, 10, 4]
    value.backward()
    assert sorted(counting.rows[3:]) == [4, 10, 10]


def test_a_batch_that_fits_is_computed_once() -> None:
    loss, policy, batch = coupled_batch()
    counting = Rows(policy)
    loss(counting, batch, SAMPLES).loss.backward()
    assert counting.rows == [2 * SAMPLES]


def test_between_forward_and_backward_hardly_anything_is_kept() -> None:
    loss, policy, batch = coupled_batch()

    def kept(rows: int) -> int:
        saved: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss(policy, batch, rows)
        return sum(saved.values())

    assert kept(3) < kept(SAMPLES) / 50


def test_equal_weights_give_a_ratio_of_one_to_the_last_bit() -> None:
    chosen = replace(algorithm(), estimator=Elbo(draws=2), pairing=paired)
    policy = tiny_policy()  # float32
    (batch,) = chosen.prepare(policy, None, phase_sequences(), phase_reward(), 1, 5, keyed)
    metrics = chosen.loss(policy, batch, 5).metrics
    assert metrics["train/ratio/log_max"] == 0
    assert metrics["train/ratio/log_std"] == 0
