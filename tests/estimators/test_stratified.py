"""The stratified ELBO: unbiased, and its draws share out the numbers of hidden tokens."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from stabledrl.estimators.stratified import Stratified
from stabledrl.functional.enumeration import order_averaged_elbo
from stabledrl.types import Sequences
from tests.estimators.outcomes import generator, orders, random_table, scripted, sequences


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("draws", [1, 2, 3])
def test_the_expectation_is_the_order_averaged_elbo(
    monkeypatch: pytest.MonkeyPatch, length: int, draws: int
) -> None:
    # Numbers of hidden tokens change with u at multiples of 1/(L·K); every cell with every order of
    # the tokens, the same for all draws: a mean over draws only asks for the law of each.
    noise = orders(length, 4)
    cells = (torch.arange(length * draws) + 0.5) / (length * draws)
    samples = sequences(length, 4, len(cells) * len(noise))
    scripted(
        monkeypatch,
        cells.repeat_interleave(len(noise)),
        noise.repeat(len(cells), 1).expand(draws, -1, -1),
    )
    estimator, model = Stratified(draws=draws), random_table(length)
    corruption = estimator.draw(samples, 1, generator())
    mean = estimator(model, samples, corruption).value.mean()
    # the weights are float32
    assert float(mean) == pytest.approx(float(order_averaged_elbo(model.table)), rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_as_many_draws_as_tokens_hide_every_number_of_them_once(seed: int) -> None:
    samples = sequences(5, 7, 3)
    corruption = Stratified(draws=5).draw(samples, 3, generator(seed))
    hidden = (corruption.mask & samples.completion_mask).sum(-1)
    assert hidden.sort(0).values.T.tolist() == [[1, 2, 3, 4, 5]] * 3


def test_two_draws_are_half_of_the_numbers_apart() -> None:
    corruption = Stratified().draw(sequences(8, 8, 50), 1, generator())
    first, second = corruption.mask.sum(-1)
    assert ((first - second).abs() == 4).all()
    assert len(first.unique()) > 4  # and every sample has its own


def test_weights_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # L = 3, K = 2, u = 0.1: m = 1 + ⌊0.3⌋ = 1 and 1 + ⌊0.3 + 1.5⌋ = 2; smallest noise first
    order = torch.tensor([[0.2, 0.1, 0.3, 0.0]])
    scripted(monkeypatch, torch.tensor([0.1]), order.expand(2, 1, 4))
    corruption = Stratified().draw(sequences(3, 4, 1), 1, generator())
    assert corruption.mask.int().tolist() == [[[0, 1, 0, 1]], [[1, 1, 0, 1]]]
    # L/(K·m) = 3/2 and 3/4
    assert corruption.weight.tolist() == [[[0, 1.5, 0, 0]], [[0.75, 0.75, 0, 0]]]


def test_a_completion_without_tokens_is_zero() -> None:
    empty: Sequences = sequences(0, 4, 2)
    assert (Stratified().draw(empty, 1, generator()).weight == 0).all()


def test_no_draws_are_refused() -> None:
    with pytest.raises(ValidationError):
        Stratified(draws=0)
