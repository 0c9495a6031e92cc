"""What the loss reports about itself, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from stabledrl.functional import clipping, normalization
from stabledrl.types import Batch, Corruption, Likelihood, Sequences
from tests.phases import SEQUENCE, algorithm, keyed, phase_reward, phase_sequences
from tests.policies import tiny_policy


def test_metrics_by_hand() -> None:
    # One group of two with log-ratios log 2 and −log 4, advantages −½ and ½: the first is the
    # bypass (A < 0, ρ > 1.2), neither is clipped by `conditional`.
    sequences = phase_sequences(1, 2)

    class Given:
        """An estimator that returns what it is told."""

        def __init__(self, value: list[float]) -> None:
            self.value = torch.tensor(value, requires_grad=True)

        def draw(self, sequences: Sequences, size: int, generator: object) -> Corruption:
            empty = torch.zeros(0, 2, 6)
            return Corruption(empty > 0, empty)

        def __call__(self, policy: object, sequences: object, corruption: object) -> Likelihood:
            return Likelihood(self.value, self.value)

    old = torch.tensor([-5.0, -7.0])
    estimator = Given((old + torch.tensor([2.0, 0.25]).log()).tolist())
    chosen = algorithm(estimator=estimator, ratio=SEQUENCE)
    batch = Batch(
        sequences,
        estimator.draw(sequences, 2, None),
        2,
        torch.tensor([[-0.5, 0.5]]),
        torch.ones(1, 2, dtype=torch.bool),
        Likelihood(old, old),
    )
    output = chosen.loss(tiny_policy(), batch)
    log2 = 0.6931472
    expected = {
        "train/ratio/mean": (2 + 0.25) / 2,
        "train/ratio/max": 2.0,
        "train/ratio/log_max": log2,
        "train/ratio/log_std": 1.5 * log2,  # log ratios 1 and −2 in units of log 2
        "train/drift/old": 0.5 * log2,  # minus the mean of 1 and −2 in units of log 2
        "train/ess": 2.25**2 / (4 + 0.0625) / 2,
        "train/bypass_rate": 0.5,
        "train/clip_ratio/low_mean": 0.0,
        "train/clip_ratio/high_mean": 0.0,
        "train/weights/max": 1.0,  # ρ/G = 2/2
        "train/weights/sum": 2.25 / 2,
        "guard/clamped_ratios": 0.0,
        "train/kl": 0.0,
        # −(1·(−½)·(−5 + log 2) + ⅛·½·(−7 − 2 log 2))
        "train/loss": -(0.5 * (5 - log2) - 0.0625 * (7 + 2 * log2)),
    }
    for name, value in expected.items():
        assert float(output.metrics[name]) == pytest.approx(value, rel=1e-5), name
    assert not any(value.requires_grad for value in output.metrics.values())


@pytest.mark.parametrize(
    ("scale", "count"),
    [
        (normalization.group, 2),
        (partial(normalization.group), 2),  # as the configuration hands it over
        (normalization.self_normalized, 0),  # in log space: nothing is clamped
        (partial(normalization.self_normalized), 0),
        (partial(normalization.batch_self), 0),
    ],
    ids=["group", "group configured", "self", "self configured", "batch_self configured"],
)
def test_clamped_ratios_are_counted_where_they_are_clamped(
    scale: Callable[..., Tensor], count: int
) -> None:
    # paired masks at unchanged weights: every other ratio is 1
    chosen = algorithm(ratio=SEQUENCE, clipping=clipping.none, normalization=scale)
    policy = tiny_policy()
    (batch,) = chosen.prepare(policy, None, phase_sequences(), phase_reward(), 1, 1000, keyed)
    old = batch.old.value.clone()
    old[0] += 1000  # ρ = exp(−1000)
    old[5] -= 1000  # ρ = exp(1000)
    batch = replace(batch, old=Likelihood(old, old))
    assert chosen.loss(policy, batch).metrics["guard/clamped_ratios"] == count


def test_drift_by_hand() -> None:
    new, start = tiny_policy(), tiny_policy()
    # what is known of four completions, handed out two by two
    values = {
        id(new): iter(torch.tensor([[-6.0, -3.0], [-12.0, -1.0]])),
        id(start): iter(torch.tensor([[-9.0, -6.0], [-6.0, -1.0]])),
    }
    drawn = []

    class Known:
        def draw(self, sequences: Sequences, size: int, generator: object) -> Corruption:
            empty = torch.zeros(0, 4, 6)
            drawn.append(Corruption(empty > 0, empty))
            return drawn[-1]

        def __call__(self, policy: object, sequences: object, corruption: object) -> Likelihood:
            chunk = next(values[id(policy)])
            return Likelihood(chunk, chunk)

    sequences = phase_sequences(2, 2)
    assert sequences.length.tolist() == [3, 6, 6, 3]
    found = algorithm(estimator=Known()).drift(new, start, sequences, 2, 2, keyed("x"))
    # differences 3, 3, −6 and 0, divided by the lengths
    assert float(found) == pytest.approx((3 / 3 + 3 / 6 - 6 / 6 + 0) / 4)
    assert len(drawn) == 1  # the same masks for both


def test_a_policy_has_not_drifted_from_itself() -> None:
    policy = tiny_policy()
    found = algorithm().drift(policy, policy, phase_sequences(), 3, 5, keyed("x"))
    assert float(found) == 0
