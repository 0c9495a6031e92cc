"""Which draws old and new policy share, and what that does to ratios at unchanged weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stabledrl.functional import clipping
from stabledrl.pairing import independent, paired, shared
from stabledrl.types import Corruption
from tests.phases import (
    GROUPS,
    Counting,
    algorithm,
    keyed,
    phase_reward,
    phase_sequences,
)
from tests.policies import tiny_policy


class Draws:
    """A draw function that tells which labels were asked for."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.drawn: dict[str, Corruption] = {}

    def __call__(self, label: str) -> Corruption:
        self.labels.append(label)
        empty = torch.zeros(0, 1, 1)
        return self.drawn.setdefault(label, Corruption(empty > 0, empty))


def test_independent_scores_the_old_policy_once_on_a_draw_of_its_own() -> None:
    pairs = independent(Draws(), 3)
    assert len({id(old) for old, _ in pairs}) == 1
    assert len({id(new) for _, new in pairs}) == 3
    assert all(old is not new for old, new in pairs)


def test_paired_scores_it_on_every_draw_and_shared_on_the_only_one() -> None:
    pairs = paired(Draws(), 3)
    assert all(old is new for old, new in pairs)
    assert len({id(new) for _, new in pairs}) == 3
    pairs = shared(Draws(), 3)
    assert all(old is new for old, new in pairs)
    assert len({id(new) for _, new in pairs}) == 1


@pytest.mark.parametrize(("pairing", "calls"), [(independent, 1), (paired, 4), (shared, 1)])
def test_evaluations_of_the_old_policy(pairing: Callable[..., object], calls: int) -> None:
    policy = Counting(tiny_policy())
    batches = algorithm(pairing=pairing).prepare(
        policy, None, phase_sequences(), phase_reward(), 4, 1000, keyed
    )
    assert policy.calls == calls
    assert len(batches) == 4


@pytest.mark.parametrize("pairing", [paired, shared])
@pytest.mark.parametrize("rule", [clipping.conditional, clipping.unconditional])
def test_unchanged_weights_give_a_ratio_of_exactly_one(
    pairing: Callable[..., object], rule: Callable[..., object]
) -> None:
    policy = tiny_policy()
    chosen = algorithm(pairing=pairing, clipping=rule)
    for batch in chosen.prepare(policy, None, phase_sequences(), phase_reward(), 2, 1000, keyed):
        metrics = chosen.loss(policy, batch).metrics
        assert metrics["train/ratio/mean"] == 1
        assert metrics["train/ratio/max"] == 1
        assert metrics["train/ratio/log_std"] == 0
        assert metrics["train/ratio/log_max"] == 0
        assert metrics["train/clip_ratio/region_mean"] == 0
        assert metrics["train/bypass_rate"] == 0
        assert metrics["train/ess"] == 1


@pytest.mark.parametrize("pairing", [paired, shared])
@pytest.mark.parametrize("size", [1, 2])
def test_and_so_they_do_in_smaller_batches(pairing: Callable[..., object], size: int) -> None:
    policy = tiny_policy()
    chosen = algorithm(pairing=pairing)
    reward = phase_reward()
    rows = size * reward.shape[1]  # scored in the shapes of the training batches
    (batch,) = chosen.prepare(policy, None, phase_sequences(), reward, 1, rows, keyed)
    for first in range(0, GROUPS, size):
        metrics = chosen.loss(policy, batch.groups(first, first + size)).metrics
        assert metrics["train/ratio/log_std"] == 0
        assert metrics["train/ratio/log_max"] == 0
        assert metrics["train/clip_ratio/region_mean"] == 0


def test_independent_masks_are_noise_at_unchanged_weights() -> None:
    policy = tiny_policy()
    chosen = algorithm(pairing=independent)
    batches = chosen.prepare(policy, None, phase_sequences(), phase_reward(), 2, 1000, keyed)
    noise = [chosen.loss(policy, batch).metrics["train/ratio/log_std"] for batch in batches]
    assert all(value > 0.01 for value in noise)
    assert noise[0] != noise[1]


def test_masks_of_a_phase_depend_on_their_label_only() -> None:
    prepare = algorithm().prepare
    policy, sequences, reward = tiny_policy(), phase_sequences(), phase_reward()
    two = prepare(policy, None, sequences, reward, 2, 1000, keyed)
    three = prepare(policy, None, sequences, reward, 3, 1000, keyed)
    for one, other in zip(two, three, strict=False):
        assert torch.equal(one.corruption.mask, other.corruption.mask)
    assert not torch.equal(two[0].corruption.mask, two[1].corruption.mask)
