"""Forward passes that job=probe counts, against numbers worked out by hand."""

import pytest
import torch

from stabledrl.estimators.coupled import Coupled
from stabledrl.estimators.coupled_token import CoupledToken
from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.exact import Exact
from stabledrl.estimators.mean_field import MeanField
from stabledrl.estimators.quadrature import Quadrature
from stabledrl.estimators.sandwich import Sandwich
from stabledrl.estimators.stratified import Stratified
from stabledrl.estimators.trajectory import Trajectory
from stabledrl.functional.quadrature import node_rate
from stabledrl.jobs.probing import Collected, Counting, Probe
from stabledrl.types import Corruption, Sequences
from tests.estimators.outcomes import random_table, sequences
from tests.phases import algorithm

LENGTH, GROUP, GROUPS = 4, 5, 2
SAMPLES = GROUP * GROUPS


def given(step=None):
    """Two groups of five completions of four tokens, two of them committed per pass."""
    step = torch.tensor([0, 0, 1, 1]).repeat(SAMPLES, 1)
    found = sequences(LENGTH, LENGTH, SAMPLES)
    return Sequences(
        found.prompt_ids, found.prompt_mask, found.completion_ids, found.completion_mask, step
    )


def measured(estimator, repetitions=2):
    phase = Collected(0, given(), torch.zeros(GROUPS, GROUP))
    probe = Probe(algorithm(estimator=estimator), random_table(LENGTH), [phase], 0, rows=4)
    return probe.evaluations(repetitions)


@pytest.mark.parametrize(
    ("estimator", "forwards"),
    [
        (Elbo(draws=1), 1),
        (Elbo(draws=3), 3),
        (Stratified(draws=4), 4),
        (Sandwich(draws=2), 2),
        (Quadrature(nodes=2, draws=3), 6),
        # nodes 0.211 and 0.789 of four tokens: ⌊0.85⌋ = 0, nothing to score, and ⌊3.15⌋ = 3
        (Quadrature(nodes=2, draws=3, divide_by=node_rate), 3),
        (MeanField(), 1),
        (CoupledToken(lowest_rate=0.5, highest_rate=0.5), None),
        (Trajectory(), 2),
        (Trajectory(draws=1), 1),
        (Trajectory(shrink=2), 1),
        (Exact(), 2**LENGTH - 1),  # a mask that hides nothing
    ],
)
def test_forward_passes(estimator, forwards):
    found = measured(estimator)
    if forwards is None:  # a side of the mask is empty now and then: three passes or two
        assert 2 <= found.forwards <= 3
    else:
        assert found.forwards == forwards
    assert found.time > 0
    assert (found.completions, found.repetitions) == (SAMPLES, 2)


@pytest.mark.parametrize("pairs", [1, 3])
def test_a_pair_costs_two_passes_less_those_with_an_empty_side(pairs):
    # five members and l on {0…4}: every l once in a group, of which 0 and 4 leave a side empty:
    # (2 + 3·2)/5 = 1.6 passes a pair
    counted = measured(Coupled(draws=pairs))
    assert counted.forwards == pytest.approx(1.6 * pairs)


def test_three_masks_are_three_passes_where_both_sides_hold_tokens():
    estimator, scorer = CoupledToken(), Counting(random_table(LENGTH))
    hidden = torch.tensor([True, True, False, False])
    everything = torch.ones(LENGTH, dtype=torch.bool)
    one = given()[:1]
    for side, passes in ((hidden, 3), (everything, 2)):
        mask = torch.stack([everything, side, ~side])[:, None]
        scorer.rows = 0
        estimator(scorer, one, Corruption(mask, mask.float()))
        assert scorer.rows == passes


def test_without_draws_nothing_scatters():
    found = measured(Trajectory())
    assert found.std == found.group_std == 0


def test_independent_masks_scatter_in_the_group_as_much_as_outside():
    found = measured(Elbo(draws=1), repetitions=400)
    assert found.group_std == pytest.approx(found.std, rel=0.05)
