"""The probe's mathematics against values worked out by hand, its rules at their limits."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from stabledrl.diagnostics.probe import (
    Evaluations,
    Noise,
    Spread,
    accuracy,
    gradient_norm,
    group_spread,
    leaves_negatives_unbounded,
    noise,
    ordered,
    spread,
)
from stabledrl.diagnostics.probe_page import Findings, page, recommendations
from stabledrl.estimators.elbo import Elbo
from stabledrl.functional import clipping
from stabledrl.types import Sequences

ALL = torch.ones(1, 2, dtype=torch.bool)


class Counter:
    """log p = −(number of hidden tokens) at every hidden token, whatever the tokens are."""

    def log_likelihood(self, sequences, mask, prompt_mask=None):
        hidden = mask & sequences.completion_mask
        return torch.where(hidden, -hidden.sum(-1, keepdim=True).float(), 0)


def two_tokens(samples):
    ones = torch.ones(samples, 2, dtype=torch.bool)
    return Sequences(ones.long(), ones, ones.long(), ones)


def estimates(draws, repetitions=4000):
    """L̂ of one completion of two tokens, many times."""
    estimator, many = Elbo(draws=draws), two_tokens(repetitions)
    corruption = estimator.draw(many, 1, torch.Generator().manual_seed(0))
    return estimator(Counter(), many, corruption).value[:, None]


@pytest.mark.parametrize(("draws", "variance"), [(1, 1.0), (4, 0.25)])
def test_elbo_of_a_countable_likelihood_is_unbiased_with_the_variance_of_its_draws(draws, variance):
    # m = 1: (2/1)·(−1) = −2; m = 2: (2/2)·(−2−2) = −4; each with probability 1/2: mean −3, variance
    # 1 for a draw, 1/K for K
    found = accuracy(estimates(draws), torch.tensor([-3.0]))
    assert abs(found.bias) < 3 * found.bias_error
    assert found.bias_error == pytest.approx(math.sqrt(variance / 4000), rel=0.1)
    assert found.std**2 == pytest.approx(variance, rel=0.1)
    assert (found.completions, found.repetitions, found.exact) == (1, 4000, -3.0)


def test_accuracy_by_hand():
    # sample 1: 1, 3 against 1: mean difference 1, variance 2; sample 2: 0, 0 against 2: −2, 0
    found = accuracy(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([1.0, 2.0]))
    assert found.bias == pytest.approx(-0.5)
    assert found.std == pytest.approx(1.0)  # √((2 + 0)/2)
    assert found.bias_error == pytest.approx(0.5)  # √((2/2 + 0/2))/2


def test_what_members_share_cancels_within_a_group():
    # two repetitions of a group of two; variance of 0, 2 is 2
    assert group_spread(torch.tensor([[[0.0, 0.0]], [[2.0, 2.0]]])) == pytest.approx((2**0.5, 0.0))
    # opposite: the mean stands still, each is ±1 from it, twice the variance of independent ones
    assert group_spread(torch.tensor([[[0.0, 2.0]], [[2.0, 0.0]]])) == pytest.approx((2**0.5, 2.0))
    # one of them at rest: distances are half of what moves, √(2/1)·√(2/4) = 1 = √((2 + 0)/2)
    assert group_spread(torch.tensor([[[0.0, 7.0]], [[2.0, 7.0]]])) == pytest.approx((1.0, 1.0))
    assert group_spread(torch.tensor([[[0.0]], [[2.0]]])) == pytest.approx((2**0.5, 2**0.5))


@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0])
def test_gaussian_noise_gives_the_normal_tail(sigma):
    shape = (50, 40, 4, 1)
    log_ratio = sigma * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    advantage = torch.tensor([3.0, -1.0, -1.0, -1.0]).repeat(40, 1)  # P(A < 0) = 3/4
    found = noise(log_ratio, advantage, torch.ones(40, 4, 1, dtype=torch.bool), 0.2)
    tail = 0.5 * math.erfc(math.log(1.2) / sigma / math.sqrt(2))
    assert found.entries == 8000
    assert found.std == pytest.approx(sigma, rel=0.03)
    assert found.bypass_rate == pytest.approx(0.75 * tail, abs=4 * found.bypass_error)
    # as large as that of 6000 independent coins, 3/4 of 8000
    assert found.bypass_error == pytest.approx(0.75 * math.sqrt(tail * (1 - tail) / 6000), rel=0.35)


def test_bypass_by_hand_leaves_out_what_has_no_verdict():
    # group 1: 1 of 2 through, both counted; group 2: the one counted is not (A > 0)
    log_ratio = torch.tensor([[[[0.2], [0.1]], [[5.0], [5.0]]]])  # ln 1.2 = 0.182
    advantage = torch.tensor([[-1.0, -1.0], [1.0, 0.0]])
    verdict = torch.tensor([[True, True], [True, False]])
    found = noise(log_ratio, advantage, verdict[..., None], 0.2)
    assert found.bypass_rate == pytest.approx(1 / 3)
    # residuals 1 − 2/3 and 0 − 1/3: √(2/1 · (1/9 + 1/9))/3 = 2/9
    assert found.bypass_error == pytest.approx(2 / 9)
    # of 0.2, 0.1, 5: mean 5.3/3
    mean = 5.3 / 3
    squares = (0.2 - mean) ** 2 + (0.1 - mean) ** 2 + (5 - mean) ** 2
    assert found.std == pytest.approx(math.sqrt(squares / 3))


def test_tokens_that_do_not_count_are_left_out():
    # two tokens each; the second of the second completion comes after its end
    log_ratio = torch.tensor([[[[0.2, 0.0], [0.3, 9.0]]]])
    mask = torch.tensor([[[True, True], [True, False]]])
    found = noise(log_ratio, torch.tensor([[-1.0, -1.0]]), mask, 0.2)
    assert found.entries == 3
    assert found.bypass_rate == pytest.approx(2 / 3)
    assert found.std == pytest.approx(math.sqrt((0.2**2 + 0.3**2) / 3 - (0.5 / 3) ** 2))


def test_one_group_has_no_error_and_no_verdict_no_noise():
    found = noise(torch.ones(1, 1, 2, 1), torch.tensor([[-1.0, 1.0]]), ALL[..., None], 0.2)
    assert found.bypass_rate == 0.5
    assert math.isnan(found.bypass_error)
    nobody = noise(torch.ones(1, 1, 2, 1), torch.zeros(1, 2), ~ALL[..., None], 0.2)
    assert (nobody.std, nobody.bypass_rate, nobody.entries) == (0, 0, 0)


def test_gradient_norms_of_two_samples_in_closed_form():
    # ℓ = (θ_1, θ_2), A = (1, −1): the gradient of Σ w_i·A_i·ℓ_i/2 is (w_1, −w_2)/2
    theta = torch.zeros(2, requires_grad=True)
    unused = torch.zeros(3, requires_grad=True)
    norms = []
    for weights in ((1.0, 1.0), (3.0, 4.0), (0.0, 2.0)):
        loss = (torch.tensor(weights) * torch.tensor([1.0, -1.0]) * theta).sum() / 2
        norms.append(gradient_norm(loss, [theta, unused]))
    assert norms == pytest.approx([math.sqrt(2) / 2, 2.5, 1.0])
    found = spread(torch.tensor([1.0, 2.5, 1.0, 0.5]))
    # mean 1.25; deviations −.25, 1.25, −.25, −.75: 2.25/3 = 0.75; median 1
    assert found.mean == pytest.approx(1.25)
    assert found.std == pytest.approx(math.sqrt(0.75))
    assert found.peak == pytest.approx(2.5)
    assert found.relative == pytest.approx(math.sqrt(0.75) / 1.25)


def test_spread_without_gradient():
    assert spread(torch.zeros(4)) == Spread(0.0, 0.0, 1.0)
    assert spread(torch.zeros(4)).relative == 0
    assert spread(torch.tensor([0.0, 0.0, 1.0])).peak == math.inf


def test_order_is_by_relative_spread():
    spreads = {
        "b": Spread(1.0, 1.0, 2.0),
        "a": Spread(100.0, 20.0, 3.0),
        "c": Spread(1.0, 0.3, 9.0),
    }
    assert ordered(spreads) == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("function", "unbounded"),
    [
        (clipping.conditional, True),
        (clipping.none, True),
        (clipping.unconditional, False),
        (partial(clipping.unconditional, epsilon=0.2), False),
        (clipping.dual, False),
        (clipping.capped_negative, False),
        (clipping.uniform, False),
    ],
)
def test_who_leaves_negatives_unbounded(function, unbounded):
    assert leaves_negatives_unbounded(function) is unbounded


LOUD, QUIET, NONE = (
    Noise(0.9, 0.1, 0.01, 1024),
    Noise(0.4, 0.01, 0.01, 1024),
    Noise(0.0, 0.0, 0.0, 1024),
)
FOUND = Findings(
    estimator="Elbo",
    pairing="independent",
    noise={"independent": LOUD, "paired": NONE, "shared": NONE},
    by_draws={1: LOUD, 2: replace(LOUD, std=0.6), 3: QUIET, 4: QUIET},
    negatives=0.4,
    unbounded=True,
    spreads={"a": Spread(1.0, 0.1, 1.5), "b": Spread(1.0, 2.0, 7.0)},
    accuracy=None,
    negative_accuracy=None,
    evaluations=Evaluations(128, 20, 0.75, 0.5, 1.875, 1.5),
    not_enumerated="too long",
)


def advice(**changes):
    return " ".join(recommendations(replace(FOUND, **changes)))


def test_loud_noise_names_the_pairing_and_the_number_of_draws():
    assert "masking.pairing=paired" in advice()
    assert "estimator.draws=3," in advice()
    assert "estimator.draws=4," in advice(by_draws={1: LOUD, 2: QUIET, 3: LOUD, 4: QUIET})
    few = advice(by_draws={1: LOUD, 2: LOUD})
    assert "estimator.draws" not in few
    assert "No number of draws up to 2" in few
    assert "No number of draws" not in advice(by_draws={})
    assert "not above 0.5" in advice(noise={"independent": QUIET})


def test_risk_of_collapse_only_where_the_bypass_is_open():
    assert "a risk of collapse (a prediction, not a fact)" in advice()
    assert "risk" not in advice(unbounded=False)
    assert "clipping=conditional would not" in advice(unbounded=False)
    assert "risk" not in advice(noise={"independent": QUIET})
    assert "there is no bypass" in advice(negatives=0.0)
    assert "raise job.repetitions" in advice(noise={"independent": replace(LOUD, entries=499)})
    assert "raise job.repetitions" not in advice()


def test_spread_in_words():
    assert "Steadiest gradient: a" in advice()
    assert "Norms above 3 times their median: b." in advice()
    assert "Every ratio is 1" in advice(noise={"independent": NONE})
    assert "No rule has a gradient" in advice(spreads={"a": Spread(0.0, 0.0, 1.0)})
    assert "gradient" not in advice(spreads={})


@pytest.mark.parametrize(("error", "word"), [(0.1, "is biased"), (0.3, "shows no bias")])
def test_bias_in_words(error, word):
    value = accuracy(torch.zeros(2, 1), torch.tensor([0.5]))
    assert word in advice(accuracy=replace(value, bias_error=error))


def test_the_page_says_what_was_not_enumerated():
    text = page(FOUND, "Elbo")
    assert "Not enumerated: too long." in text
    assert "| independent | 0.9 | 0.1000 | 0.0100 | 1024 |" in text
    assert text.index("| a | 1 |") < text.index("| b | 1 |")
    assert "`Elbo` has no number of draws" in page(replace(FOUND, by_draws={}), "Elbo")


def test_the_page_says_what_an_evaluation_costs():
    assert "| 128 | 20 | 0.75 | 0.5 | 1.875 | 1.5 |" in page(FOUND, "Elbo")


def test_the_page_has_a_row_for_the_score_of_negatives():
    value = accuracy(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0]))
    text = page(replace(FOUND, accuracy=value, negative_accuracy=replace(value, bias=0.25)), "S")
    assert "| value | 1 | 2 | 1 | 1 | 1 | 1.414 |" in text
    assert "| score where A ≤ 0 | 1 | 2 | 1 | 0.25 | 1 | 1.414 |" in text
