"""pass@k and Wilson's interval, worked by hand and against definitions."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.functional.evaluation import pass_at_k, wilson_interval


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
