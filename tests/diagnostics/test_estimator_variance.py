"""benchmarks/estimator_variance.py against values by hand and against the estimators' own draws."""

import pytest

from benchmarks.estimator_variance import log_probabilities, variances
from stabledrl.estimators.coupled import Coupled
from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.stratified import Stratified
from stabledrl.functional.enumeration import all_subsets
from tests.estimators.outcomes import generator, random_table, sequences


def test_two_tokens_by_hand():
    # log p = −m at every hidden token: L/m·Σ is −2 for m = 1 and −4 for m = 2, variance 1; two
    # strata hold one of each; a pair is ½·3·(0 − 2) = ½·3·(−1 − 1) = −3 whatever is hidden
    subset = all_subsets(2)
    table = -subset.sum(-1, keepdim=True).double() * subset
    found = variances(table, subset)
    assert found["elbo"] == pytest.approx(1)
    assert found["stratified, K=2"] == pytest.approx(0, abs=1e-9)
    assert found["coupled"] == pytest.approx(0, abs=1e-9)


def test_as_many_draws_scatter():
    length, many, table = 4, 40_000, random_table(4)
    found = variances(log_probabilities(table, sequences(length, length, 1)), all_subsets(length))
    given = sequences(length, length, many)
    for estimator, forwards, name in (
        (Elbo(draws=1), 1, "elbo"),
        (Stratified(draws=2), 2, "stratified, K=2"),
        (Coupled(draws=1), 1.6, "coupled"),
    ):
        value = estimator(table, given, estimator.draw(given, 1, generator())).value
        assert float(value.double().var()) * forwards == pytest.approx(found[name], rel=0.05)
