"""The loss and its diagnostics on numbers worked by hand."""

import math

import pytest
import torch

from stabledrl.functional import clipping, objective

SCORE = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]).unsqueeze(-1)
ADVANTAGE = torch.tensor([[1.0, -1.0, 0.0], [2.0, 0.0, -2.0]])
COEFFICIENT = torch.tensor([[0.5, 0.25, 9.0], [1.0, 3.0, 0.0]]).unsqueeze(-1)


def test_policy_loss_and_gradient_by_hand():
    score = SCORE.clone().requires_grad_()
    loss = objective.policy_loss(score, ADVANTAGE, COEFFICIENT)
    loss.backward()
    # c·A = 0.5, −0.25, 0 | 2, 0, 0;  Σ c·A·ℓ = −0.5 + 0.5 − 8 = −8;  −(−8)/2 = 4
    assert loss.item() == 4
    assert score.grad.flatten().tolist() == [-0.25, 0.125, 0, -1, 0, 0]


def test_zero_times_anything_is_exactly_zero():
    score = SCORE.clone()
    score[0, 2], score[1, 1], score[1, 2] = -math.inf, math.nan, math.inf
    score.requires_grad_()
    loss = objective.policy_loss(score, ADVANTAGE, COEFFICIENT)
    loss.backward()
    assert loss.item() == 4
    assert score.grad.flatten().tolist() == [-0.25, 0.125, 0, -1, 0, 0]


def test_nan_in_the_coefficient_or_a_counted_score_stays_nan():
    for entry in ((0, 0), (0, 2)):  # the second has A = 0: a NaN must not hide behind it
        coefficient = COEFFICIENT.clone()
        coefficient[entry] = math.nan
        assert objective.policy_loss(SCORE, ADVANTAGE, coefficient).isnan()
    score = SCORE.clone()
    score[0, 0] = math.nan
    assert objective.policy_loss(score, ADVANTAGE, COEFFICIENT).isnan()


def test_coefficient_and_advantage_are_constants_for_autograd():
    score = SCORE.clone().requires_grad_()
    coefficient = COEFFICIENT.clone().requires_grad_()
    advantage = ADVANTAGE.clone().requires_grad_()
    objective.policy_loss(score, advantage, coefficient).backward()
    assert coefficient.grad is None
    assert advantage.grad is None


def test_no_groups_give_zero():
    empty = torch.zeros(0, 3, 1)
    assert objective.policy_loss(empty, torch.zeros(0, 3), empty).item() == 0


def test_effective_sample_size_by_hand():
    weight = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 5.0], [0.0, 7.0, 0.0], [1.0, 1.0, 1.0]])
    mask = torch.tensor([[True] * 3, [True, True, False], [True] * 3, [False] * 3])
    result = objective.effective_sample_size(weight.log().unsqueeze(-1), mask.unsqueeze(-1))
    # all equal: 1; (1+2)²/(1+4)/2 = 0.9; one of three: 1/3; nobody left: 0
    torch.testing.assert_close(result, torch.tensor([1.0, 0.9, 1 / 3, 0.0]))


def test_effective_sample_size_does_not_depend_on_the_scale():
    log_weight = torch.tensor([[0.0, 0.5, 1.0]]).unsqueeze(-1)
    mask = torch.ones_like(log_weight, dtype=torch.bool)
    result = objective.effective_sample_size(log_weight, mask)
    for shift in (-700.0, 700.0):
        moved = objective.effective_sample_size(log_weight + shift, mask)
        torch.testing.assert_close(moved, result, rtol=1e-4, atol=0)
    assert objective.effective_sample_size(log_weight * math.nan, mask).isnan().all()


RATIO = torch.tensor([[0.5, 1.0, 2.0], [4.0, 0.25, 1.1]]).unsqueeze(-1)
SIGN = torch.tensor([[-1.0, 1.0, 1.0], [-1.0, 1.0, -1.0]])
MASK = torch.tensor([[True, True, True], [True, False, True]]).unsqueeze(-1)


def test_bypass_rate_by_hand():
    # A<0 and ρ > 1.2: only the 4, of five that count; with ε = 0.05 the 1.1 as well; none over 6
    for epsilon, expected in ((0.2, 1 / 5), (0.05, 2 / 5), (5.0, 0.0)):
        result = objective.bypass_rate(RATIO.log(), SIGN, epsilon, MASK)
        assert result.item() == pytest.approx(expected)
    assert objective.bypass_rate(RATIO.log(), SIGN, 0.2, torch.zeros_like(MASK)).item() == 0


@pytest.mark.parametrize(
    ("clip", "low", "high"),
    [
        (clipping.none, 0, 0),
        # dropped: A<0 at ½ (low), A>0 at 2 (high)
        (clipping.conditional, 1 / 5, 1 / 5),
        # and A<0 at 4
        (clipping.dual, 1 / 5, 2 / 5),
        # and A<0 at 4, re-weighted
        (clipping.capped_negative, 1 / 5, 2 / 5),
        # nothing beyond 6
        (clipping.unconditional, 0, 0),
        (lambda d, a: clipping.unconditional(d, a, 0.4), 1 / 5, 2 / 5),
    ],
)
def test_clip_fractions_by_hand(clip, low, high):
    log_weight, keep = clip(RATIO.log(), SIGN)
    result = objective.clip_fractions(RATIO.log(), log_weight, keep, MASK)
    assert [value.item() for value in result] == pytest.approx([low, high])
