"""pass@k and Wilson's interval, worked by hand and against definitions."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.functional.evaluation import mean_interval, pass_at_k, wilson_interval


def test_pass_at_k_by_hand():
    solved = torch.tensor([[True, False, False, False], [True, True, False, False], [False] * 4])
    # 1 - C(n-c, k)/C(n, k), n = 4: k = 1: c/4; k = 2: C(4,2) = 6, c = 1: 1 - 3/6, c = 2: 1 - 1/6
    assert pass_at_k(solved, 1).tolist() == [0.25, 0.5, 0.0]
    assert pass_at_k(solved, 2).tolist() == pytest.approx([0.5, 5 / 6, 0.0])
    # k = 3: C(4,3) = 4, c = 1: 1 - 1/4, c = 2: 1 - 0; k = 4: solved at all
    assert pass_at_k(solved, 3).tolist() == [0.75, 1.0, 0.0]
    assert pass_at_k(solved, 4).tolist() == [1.0, 1.0, 0.0]


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_solution(outcomes, data):
    k = data.draw(st.integers(1, len(outcomes)))
    subsets = list(itertools.combinations(outcomes, k))
    expected = sum(map(any, subsets)) / len(subsets)
    assert pass_at_k(torch.tensor([outcomes]), k).item() == pytest.approx(expected)


def test_fewer_samples_than_k_are_refused():
    with pytest.raises(ValueError, match="pass@3 needs at least 3 samples per prompt, not 2"):
        pass_at_k(torch.ones(1, 2, dtype=torch.bool), 3)


def test_many_samples_do_not_overflow():
    solved = torch.zeros(1, 2000, dtype=torch.bool)
    solved[0, 0] = True
    # one of n: 1 - (n-k)/n = k/n
    assert pass_at_k(solved, 500).item() == pytest.approx(0.25)


def test_wilson_by_hand():
    # p = 1/2, n = 4, z = 2: scale 1 + 4/4 = 2, center (1/2 + 4/8)/2 = 1/2,
    # half 2·√(1/16 + 4/64)/2 = √(1/8)
    low, high = wilson_interval(0.5, 4, 2.0)
    assert (low, high) == pytest.approx((0.5 - math.sqrt(1 / 8), 0.5 + math.sqrt(1 / 8)))
    # p = 0, n = 1, z = 1: scale 2, center (0 + 1/2)/2 = 1/4, half √(1/4)/2 = 1/4
    assert wilson_interval(0.0, 1, 1.0) == pytest.approx((0.0, 0.5))


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_wilson_holds_the_rate_and_stays_within_0_and_1(trials, rate):
    low, high = wilson_interval(rate, trials)
    assert -1e-12 <= low <= rate + 1e-12
    assert rate - 1e-12 <= high <= 1 + 1e-12


def test_wilson_narrows_with_trials():
    widths = [high - low for low, high in (wilson_interval(0.3, n) for n in (10, 100, 1000))]
    assert widths == sorted(widths, reverse=True)


def test_the_interval_of_a_mean_by_hand():
    # p = 1/2, s² = (1/4 + 0 + 0 + 1/4)/4 = 1/8: n* = 4·(1/4)/(1/8) = 8 trials
    values = torch.tensor([0.0, 0.5, 0.5, 1.0])
    assert mean_interval(values, 4) == pytest.approx(wilson_interval(0.5, 8))
    # p = 1/2, s² = 2·(1/64)/4 = 1/128: n* = 128, but there are 4·4 completions
    values = torch.tensor([0.375, 0.5, 0.5, 0.625])
    assert mean_interval(values, 4) == pytest.approx(wilson_interval(0.5, 16))


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_equal_chances_count_once_for_each_prompt_and_leave_a_width(value):
    low, high = mean_interval(torch.full((20,), value), 8)
    assert (low, high) == pytest.approx(wilson_interval(value, 20))
    assert high - low > 0.1


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 8))
def test_chances_of_0_and_1_are_trials(outcomes, samples):
    expected = wilson_interval(sum(outcomes) / len(outcomes), len(outcomes))
    assert mean_interval(torch.tensor(outcomes).float(), samples) == pytest.approx(expected)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize(
    "chances", [(0.0, 1.0), (0.02, 0.02), (0.0, 0.1, 0.9), (0.3, 0.5), (0.0, 0.0, 0.0, 0.2)]
)
def test_95_of_100_intervals_hold_the_truth(chances, k):
    """Simulation: a prompt's chance is one of `chances`; pass@k = E[1 − (1−p)^k]."""
    generator = torch.Generator().manual_seed(0)
    truth = sum(1 - (1 - chance) ** k for chance in chances) / len(chances)
    repetitions, prompts, samples = 300, 60, 8
    kind = torch.randint(len(chances), (repetitions, prompts), generator=generator)
    uniform = torch.rand((repetitions, prompts, samples), generator=generator)
    solved = uniform < torch.tensor(chances)[kind][..., None]
    each = pass_at_k(solved.flatten(0, 1), k).view(repetitions, prompts)
    bounds = [mean_interval(values, samples) for values in each]
    coverage = sum(low <= truth <= high for low, high in bounds) / repetitions
    # 0.95 less two standard errors of 300 repetitions, 2·0.0126
    assert coverage >= 0.925
