"""The sandwich: its two scores by hand, which of them trains which completion, its one forward."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.sandwich import Sandwich
from stabledrl.functional.clipping import uniform
from stabledrl.functional.masking import block_random
from stabledrl.types import Likelihood, Sequences
from tests.phases import algorithm, keyed, phase_reward, phase_sequences
from tests.policies import tiny_policy


class Recorded:
    """Answers with given log-probabilities [draw, sample, position]."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Tensor:
        return torch.where(mask & sequences.completion_mask, self.value, 0)


def test_both_scores_by_hand() -> None:
    # L = 4 of 5; draw 1 hides tokens 0 and 1 (t = ½) with p = ½ and ¼, draw 2 token 1 (t = ¼) with
    # ½. ELBO̅ = ½(½(log ½ + log ¼) + log ½) = −1.25·log 2. EUBO̅ with β = 2, as in the test of the
    # bound: ½·log 3/8. With ω = ¼: negative = L(¼·EUBO̅ + ¾·ELBO̅).
    ones = torch.ones(1, 2, dtype=torch.bool)
    counted = torch.tensor([[True, True, True, True, False]])
    sequences = Sequences(ones.long(), ones, torch.full((1, 5), 7), counted)
    mask = torch.tensor([[[1, 1, 0, 0, 1]], [[0, 1, 0, 0, 1]]]) > 0
    estimator = Sandwich(masking=lambda *_: (mask, None), beta=2.0, upper_bound_weight=0.25)
    corruption = estimator.draw(sequences, 1, torch.Generator())
    rows = torch.tensor([[0.5, 0.25, 9, 9, 9], [9, 0.5, 9, 9, 9]]).log()
    likelihood = estimator(Recorded(rows[:, None]), sequences, corruption)
    lower, upper = -1.25 * math.log(2), math.log(3 / 8) / 2
    assert float(likelihood.value) == pytest.approx(4 * lower)
    assert likelihood.score is likelihood.value
    assert likelihood.token_value is None
    assert likelihood.negative_score is not None
    assert float(likelihood.negative_score) == pytest.approx(upper + 3 * lower)


@pytest.mark.parametrize("masking", [None, partial(block_random, block_length=2)])
@torch.no_grad()
def test_the_value_is_that_of_elbo_on_the_same_masks(masking: object) -> None:
    chosen = {} if masking is None else {"masking": masking}
    sequences, policy = phase_sequences(), tiny_policy()
    ours, theirs = (kind(draws=3, **chosen) for kind in (Sandwich, Elbo))  # type: ignore[arg-type]
    drawn = [it.draw(sequences, 3, torch.Generator().manual_seed(0)) for it in (ours, theirs)]
    values = [
        it(policy, sequences, corruption).value
        for it, corruption in zip((ours, theirs), drawn, strict=True)
    ]
    assert torch.equal(*values)
    assert (drawn[0].prompt_mask is None) == (masking is None)


@torch.no_grad()
def test_slices_of_a_phase_have_the_values_of_the_phase() -> None:
    sequences, policy = phase_sequences(), tiny_policy()
    estimator = Sandwich(masking=partial(block_random, block_length=2))
    corruption = estimator.draw(sequences, 3, torch.Generator().manual_seed(0))
    whole = estimator(policy, sequences, corruption)
    parts = [
        estimator(policy, sequences[at], corruption[at]) for at in (slice(0, 5), slice(5, None))
    ]
    joined = Likelihood.join(parts)
    again = joined[torch.arange(len(sequences))]
    for name in ("value", "score", "negative_score"):
        torch.testing.assert_close(getattr(joined, name), getattr(whole, name))
        assert torch.equal(getattr(again, name), getattr(joined, name))


def test_likelihoods_without_negative_score_stay_without() -> None:
    plain = Likelihood(torch.zeros(2), torch.zeros(2))
    assert Likelihood.join([plain, plain]).negative_score is None
    assert plain[torch.tensor([0])].negative_score is None


class Fixed:
    """An estimator with given answers."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood

    def draw(self, *_: object) -> None:
        raise NotImplementedError

    def __call__(self, *_: object) -> Likelihood:
        return self.likelihood


def test_the_sign_of_the_advantage_chooses_the_score() -> None:
    # w = 1 and Z = G = 3: the loss is −mean(A·ℓ), so its gradient is −A/3/|y| in the score of A > 0
    # and in the other one where A ≤ 0; an advantage of 0 gives no gradient either way.
    sequences = phase_sequences(1, 3)
    one, other = (torch.tensor([-3.0, -2.0, -5.0], requires_grad=True) for _ in range(2))
    fixed = Fixed(Likelihood(one.detach(), one, None, other))
    (batch,) = algorithm().prepare(
        tiny_policy(), None, sequences, torch.tensor([[0.0, 0.5, 1.0]]), 1, 1000, keyed
    )
    chosen = algorithm(estimator=fixed, clipping=uniform)
    first, second = torch.autograd.grad(chosen.loss(tiny_policy(), batch).loss, [one, other])
    length = sequences.length
    assert first.tolist() == pytest.approx([0, 0, -0.5 / 3 / int(length[2])])
    assert second.tolist() == pytest.approx([0.5 / 3 / int(length[0]), 0, 0])
    alone = algorithm(estimator=Fixed(replace(fixed.likelihood, negative_score=None)))
    (gradient,) = torch.autograd.grad(
        replace(alone, clipping=uniform).loss(tiny_policy(), batch).loss, [one]
    )
    torch.testing.assert_close(gradient, first + second)


def test_without_the_upper_bound_it_trains_as_elbo_does() -> None:
    def trained(estimator: object) -> Tensor:
        chosen, policy = algorithm(estimator=estimator), tiny_policy()
        (batch,) = chosen.prepare(policy, None, phase_sequences(), phase_reward(), 1, 1000, keyed)
        loss = chosen.loss(policy, batch).loss
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(policy.parameters()))]
        )

    lower, elbo, mixed = map(trained, (Sandwich(upper_bound_weight=0.0), Elbo(), Sandwich()))
    torch.testing.assert_close(lower, elbo)
    assert not torch.allclose(mixed, elbo)
    # one draw: the upper bound has the lower one's gradient
    torch.testing.assert_close(trained(Sandwich(draws=1)), trained(Elbo(draws=1)))


@pytest.mark.parametrize(
    "wrong",
    [{"draws": 0}, {"beta": 0.9}, {"upper_bound_weight": 1.1}, {"upper_bound_weight": -0.1}],
    ids=str,
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Sandwich(**wrong)  # type: ignore[arg-type]
