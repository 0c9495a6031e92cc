"""Sampling, confidence and quota, by hand numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stabledrl.functional.decoding import (
    commit_mask,
    linear_time_quota,
    negative_entropy,
    random_order,
    sample_token,
    token_probability,
    top_margin,
    transfer_quota,
)

LOGITS = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.1, 0.2, 0.3, 0.4]]).log()
TOKEN = torch.tensor([1, 3])
UNIFORM = torch.tensor([0.3, 0.7])


@pytest.mark.parametrize(
    ("masked", "forwards", "quota"),
    [
        (8, 4, [2, 2, 2, 2]),
        (7, 3, [3, 2, 2]),
        (5, 5, [1] * 5),
        (5, 1, [5]),
        (8, 5, [2, 2, 2, 1, 1]),
    ],
)
def test_the_remainder_goes_to_the_first_passes(
    masked: int, forwards: int, quota: list[int]
) -> None:
    assert transfer_quota(masked, forwards) == quota


@pytest.mark.parametrize("forwards", [0, 5])
def test_a_pass_without_anything_to_commit_is_refused(forwards: int) -> None:
    with pytest.raises(ValueError, match=f"{forwards} forward passes cannot share 4"):
        transfer_quota(4, forwards)


@pytest.mark.parametrize(
    ("masked", "forwards", "quota"),
    [
        # t = 1, .75025, .5005, .25075, .001: 8·.24975 = 1.998 -> 1; 7·.3329 = 2.33 -> 2;
        # 5·.499 = 2.495 -> 2; the rest
        (8, 4, [1, 2, 2, 3]),
        # t = 1, .5005, .001: 4·.4995 = 1.998 -> 1; the rest
        (4, 2, [1, 3]),
        (4, 1, [4]),
        # one token for each pass is never quite due: t = 1, .6670, .3340, .001; 3·.333 = .999 -> 0,
        # 3·.4993 = 1.498 -> 1
        (3, 3, [0, 1, 2]),
    ],
)
def test_a_pass_commits_as_much_as_time_has_run(
    masked: int, forwards: int, quota: list[int]
) -> None:
    assert linear_time_quota(masked, forwards, 1e-3) == quota


@pytest.mark.parametrize(("forwards", "epsilon"), [(0, 0.1), (4, 0.0), (4, 1.0)])
def test_time_has_to_run_down(forwards: int, epsilon: float) -> None:
    with pytest.raises(ValueError, match=f"{forwards} forward passes from time 1 to {epsilon}"):
        linear_time_quota(4, forwards, epsilon)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.floats(-6, 6, width=32), min_size=2, max_size=9),
    st.sampled_from([0.3, 0.9, 1.0, 2.0]),
)
def test_sampled_tokens_follow_the_softmax(values: list[float], temperature: float) -> None:
    # Stratified u = (i + ½)/n: every interval of length p holds n·p of them, within one.
    n = 1000
    logits = torch.tensor(values)
    uniform = (torch.arange(n) + 0.5) / n
    token = sample_token(logits.expand(n, -1), uniform, temperature)
    share = torch.bincount(token, minlength=len(values)) / n
    exact = torch.softmax(logits.double() / temperature, -1)
    assert (share - exact).abs().max() <= 1 / n + 1e-6


def test_sampled_tokens_by_hand() -> None:
    # distribution function of the first row: .5, .75, .875, 1
    uniform = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.88, 1 - 2**-24])
    token = sample_token(LOGITS[:1].expand(7, -1), uniform, 1.0)
    assert token.tolist() == [0, 0, 1, 1, 2, 3, 3]


def test_temperature_zero_is_the_limit_of_small_temperatures() -> None:
    uniform = torch.linspace(0, 1 - 2**-24, 50)
    for row in LOGITS:
        tokens = row.expand(50, -1)
        assert torch.equal(sample_token(tokens, uniform, 1e-4), sample_token(tokens, uniform, 0.0))


@pytest.mark.parametrize("impossible", [0, 2, 4])
def test_a_token_of_probability_zero_is_never_taken(impossible: int) -> None:
    logits = torch.zeros(5)
    logits[impossible] = float("-inf")
    uniform = torch.cat([torch.linspace(0, 1 - 2**-24, 200), torch.tensor([1.0])])
    for temperature in (0.0, 0.01, 1.0, 100.0):
        token = sample_token(logits.expand(201, -1), uniform, temperature)
        assert (token != impossible).all()


def test_confidences_by_hand() -> None:
    assert token_probability(LOGITS, TOKEN, UNIFORM).tolist() == pytest.approx([0.25, 0.4])
    assert random_order(LOGITS, TOKEN, UNIFORM) is UNIFORM
    assert top_margin(LOGITS, TOKEN, UNIFORM).tolist() == pytest.approx([0.25, 0.1])
    # ½ log ½ + ¼ log ¼ + 2·⅛ log ⅛ = −(½ + ½ + ¾) log 2
    assert negative_entropy(LOGITS, TOKEN, UNIFORM)[0] == pytest.approx(-1.75 * math.log(2))


def test_a_certain_token_has_no_entropy_and_an_impossible_one_does_not_spoil_it() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 0.0]])
    zero = torch.zeros(1)
    assert negative_entropy(logits, TOKEN[:1], zero)[0] == pytest.approx(-math.log(2))
    assert top_margin(logits, TOKEN[:1], zero)[0] == 0
    certain = torch.tensor([[50.0, -50.0]])
    assert negative_entropy(certain, TOKEN[:1], zero)[0] == pytest.approx(0)


ALL = [True, True, True, True]


@pytest.mark.parametrize(
    ("confidence", "masked", "quota", "threshold", "committed"),
    [
        ([0.1, 0.9, 0.5, 0.7], ALL, 2, None, [0, 1, 0, 1]),
        ([0.5, 0.5, 0.5, 0.5], ALL, 2, None, [1, 1, 0, 0]),  # ties: the earlier position
        ([0.1, 0.9, 0.5, 0.7], [True, False, True, False], 1, None, [0, 0, 1, 0]),
        ([0.1, 0.9, 0.5, 0.7], [True, False, False, False], 3, None, [1, 0, 0, 0]),
        ([0.1, 0.9, 0.5, 0.7], ALL, 1, 0.4, [0, 1, 1, 1]),  # all above the threshold
        ([0.1, 0.9, 0.5, 0.7], ALL, 2, 0.8, [0, 1, 0, 1]),  # and at least the quota
        ([0.1, 0.9, 0.5, 0.7], [True, False, True, True], 1, 0.05, [1, 0, 1, 1]),
        ([-9.0, -1e4, -3.0, -8.0], ALL, 3, None, [1, 0, 1, 1]),  # negative confidences
    ],
)
def test_what_is_committed(
    confidence: list[float],
    masked: list[bool],
    quota: int,
    threshold: float | None,
    committed: list[int],
) -> None:
    commit = commit_mask(torch.tensor([confidence]), torch.tensor([masked]), quota, threshold)
    assert commit.int().tolist() == [committed]
