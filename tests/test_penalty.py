"""The KL term against autograd of formulas written out here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.mean_field import MeanField
from stabledrl.functional.kl import k1, k2, k3
from stabledrl.penalty import (
    DivergencePenalty,
    divided,
    fixed_length,
    per_token,
    pooled,
    sequence,
    token,
)
from stabledrl.types import Batch, Likelihood
from tests.phases import (
    GROUPS,
    LENGTH,
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

FORMULAS: dict[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = {
    k1: lambda delta: -delta,
    k2: lambda delta: delta * delta / 2,
    k3: lambda delta: delta.exp() - 1 - delta,
}

OF_TOKENS = (token, fixed_length, pooled)


def prepared(penalty: DivergencePenalty, token_values: bool = False) -> tuple[object, Batch]:
    """Equal rewards: nothing but the penalty is left in the loss."""
    estimator = MeanField(0.0) if token_values else Elbo(draws=2)
    chosen = algorithm(estimator=estimator, penalty=penalty)
    reward = torch.full((GROUPS, MEMBERS), 0.5)
    reward[1, 2] = float("nan")
    policy, reference = tiny_policy().double(), moved_policy(0.05).double()
    (batch,) = chosen.prepare(policy, reference, phase_sequences(), reward, 1, 1000, keyed)
    return chosen, batch


@pytest.mark.parametrize("divergence", FORMULAS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "level", [sequence, divided, per_token, *OF_TOKENS], ids=lambda f: f.__name__
)
def test_value_and_gradient(
    divergence: Callable[[Tensor], Tensor], level: Callable[..., Tensor]
) -> None:
    chosen, batch = prepared(DivergencePenalty(0.3, divergence, level), level in OF_TOKENS)
    policy, reference = tiny_policy().double(), moved_policy(0.05).double()
    formula = FORMULAS[divergence]
    sequences, corruption = batch.sequences, batch.corruption

    def expected() -> Tensor:
        draws = len(corruption.mask)
        theta = [policy.log_likelihood(sequences, corruption.mask[k]) for k in range(draws)]
        with torch.no_grad():
            other = [reference.log_likelihood(sequences, corruption.mask[k]) for k in range(draws)]
        weighted = [(b - a) * w for a, b, w in zip(theta, other, corruption.weight, strict=True)]
        delta = torch.stack(weighted).sum(0)
        length = sequences.completion_mask.sum(-1)
        if level is pooled:  # every token that counts and is of a sample with a verdict
            rows = [row for row in range(len(delta)) if row != 5]
            counted = [formula(delta[row, : length[row]]).sum() for row in rows]
            return 0.3 * sum(counted) / sum(length[row] for row in rows)
        if level in (token, fixed_length):
            value = (formula(delta) * sequences.completion_mask).sum(-1)
            value = value / (length if level is token else LENGTH)
        else:
            value = formula(delta.sum(-1) / (length if level is per_token else 1))
            if level is divided:
                value = value / length
        value = value.view(GROUPS, MEMBERS)
        # the sample without verdict leaves the mean of its group
        means = [value[i, : 2 if i == 1 else 3].mean() for i in range(GROUPS)]
        return 0.3 * sum(means) / GROUPS

    output = chosen.loss(policy, batch)
    assert output.loss.item() == pytest.approx(expected().item(), rel=1e-6)
    assert output.metrics["train/kl"] == output.loss
    assert abs(output.loss.item()) > 1e-4
    torch.testing.assert_close(
        gradient(policy, lambda: chosen.loss(policy, batch).loss),
        gradient(policy, expected),
        rtol=1e-6,
        atol=1e-9,
    )


def test_the_rollout_reference_is_the_policy_that_sampled() -> None:
    chosen = algorithm(penalty=DivergencePenalty(0.3, k3, sequence, "rollout"))
    policy = tiny_policy()
    reward = torch.full((GROUPS, MEMBERS), 0.5)
    (batch,) = chosen.prepare(policy, None, phase_sequences(), reward, 1, 1000, keyed)
    assert batch.reference is not None
    assert torch.equal(batch.reference.value, batch.old.value)
    assert chosen.loss(policy, batch).loss == 0
    assert (gradient(policy, lambda: chosen.loss(policy, batch).loss) == 0).all()
    assert chosen.loss(moved_policy(0.05), batch).loss > 0


def test_without_a_coefficient_no_reference_is_evaluated() -> None:
    frozen = Counting(tiny_policy())
    chosen = algorithm()
    batches = chosen.prepare(
        tiny_policy(), frozen, phase_sequences(), phase_reward(), 2, 1000, keyed
    )
    assert frozen.calls == 0
    assert all(batch.reference is None for batch in batches)
    assert chosen.loss(tiny_policy(), batches[0]).metrics["train/kl"] == 0


def test_a_missing_reference_is_an_error_and_not_a_silent_zero() -> None:
    chosen = algorithm(penalty=DivergencePenalty(0.1))
    with pytest.raises(ValueError, match=r"kl\.reference=frozen"):
        chosen.prepare(tiny_policy(), None, phase_sequences(), phase_reward(), 1, 1000, keyed)


@pytest.mark.parametrize("level", OF_TOKENS)
def test_levels_of_tokens_need_token_values(level: Callable[..., Tensor]) -> None:
    value = torch.zeros(2)
    plain, verdict = Likelihood(value, value), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"kl\.level=token"):
        level(k3, plain, plain, phase_sequences(), verdict)


@pytest.mark.parametrize("level", [sequence, pooled])
def test_a_filtered_group_leaves_the_mean(level: Callable[..., Tensor]) -> None:
    # the loss of two groups of which one was dropped is that of the other alone
    penalty = DivergencePenalty(0.3, k3, level)
    chosen = algorithm(estimator=MeanField(0.0), penalty=penalty)
    reward = torch.full((GROUPS, MEMBERS), 0.5)
    reward[1] = float("nan")
    policy, reference = tiny_policy().double(), moved_policy(0.05).double()
    (batch,) = chosen.prepare(policy, reference, phase_sequences(), reward, 1, 1000, keyed)
    kept = [index for index in range(GROUPS) if index != 1]
    alone = [batch.groups(index, index + 1) for index in kept]
    losses = [chosen.loss(policy, replace(item, counted_share=1.0)).loss.item() for item in alone]
    lengths = [float(item.sequences.length.sum()) for item in alone]
    weights = lengths if level is pooled else [1.0] * len(kept)
    expected = sum(a * b for a, b in zip(losses, weights, strict=True)) / sum(weights)
    assert chosen.loss(policy, batch).loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("settings", [{"coefficient": -1}, {"reference": "old"}, {"beta": 1}])
def test_bad_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DivergencePenalty(**settings)  # type: ignore[arg-type]
