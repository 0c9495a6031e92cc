"""Ratio levels and the guarded exponential, on numbers worked by hand."""

import math

import pytest
import torch

from stabledrl.functional import ratio

VALUE = torch.tensor([[-10.0, -6.0, -3.0], [-8.0, -2.0, 0.0]])
OLD = torch.tensor([[-12.0, -5.0, -3.0], [-8.5, -4.0, 0.0]])
LENGTH = torch.tensor([[4, 2, 3], [1, 8, 0]])


def test_sequence_level_is_the_plain_difference():
    log_ratio = ratio.sequence_log_ratio(VALUE, OLD, LENGTH)
    # −10+12, −6+5, 0 | −8+8.5, −2+4, 0
    assert log_ratio.tolist() == [[[2.0], [-1.0], [0.0]], [[0.5], [2.0], [0.0]]]


def test_per_token_level_divides_by_the_length_and_is_zero_for_an_empty_completion():
    log_ratio = ratio.per_token_log_ratio(VALUE, OLD, LENGTH)
    # 2/4, −1/2, 0/3 | 0.5/1, 2/8, nothing to divide by
    assert log_ratio.tolist() == [[[0.5], [-0.5], [0.0]], [[0.5], [0.25], [0.0]]]


def test_token_level_keeps_every_token():
    value, old = torch.tensor([[[-1.0, -2.0]]]), torch.tensor([[[-1.5, -1.0]]])
    assert ratio.token_log_ratio(value, old, torch.tensor([[2]])).tolist() == [[[0.5, -1.0]]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "level", [ratio.sequence_log_ratio, ratio.per_token_log_ratio, ratio.token_log_ratio]
)
def test_log_ratios_are_float32_and_detached(level, dtype):
    shape = (1, 2, 3) if level is ratio.token_log_ratio else (1, 2)
    value = torch.ones(shape, dtype=dtype, requires_grad=True)
    log_ratio = level(value, torch.zeros(shape, dtype=dtype), torch.ones(1, 2, dtype=torch.long))
    assert log_ratio.dtype == torch.float32
    assert not log_ratio.requires_grad


def test_the_subtraction_happens_in_float32():
    # 300 and 0.5 are bfloat16 numbers; their difference 299.5 is not (it would round to 300).
    value = torch.tensor([[300.0]], dtype=torch.bfloat16)
    old = torch.tensor([[0.5]], dtype=torch.bfloat16)
    assert ratio.sequence_log_ratio(value, old, torch.tensor([[1]])).item() == 299.5


@pytest.mark.parametrize(
    ("level", "slope"),
    [
        (ratio.sequence_score, [1, 1, 1, 1, 1, 1]),
        (ratio.per_token_score, [1 / 4, 1 / 2, 1 / 3, 1, 1 / 8, 0]),
    ],
)
def test_scores_keep_the_gradient(level, slope):
    value = VALUE.clone().requires_grad_()
    score = level(value, LENGTH)
    score.sum().backward()
    assert score.shape == (2, 3, 1)
    torch.testing.assert_close(value.grad.flatten(), torch.tensor(slope, dtype=torch.float32))
    torch.testing.assert_close(score.detach().flatten(), VALUE.flatten() * torch.tensor(slope))


def test_token_score_keeps_value_and_gradient():
    value = torch.tensor([[[-1.0, -2.0]]], requires_grad=True)
    score = ratio.token_score(value, torch.tensor([[2]]))
    (score * torch.tensor([3.0, 5.0])).sum().backward()
    assert score.tolist() == [[[-1.0, -2.0]]]
    assert value.grad.tolist() == [[[3.0, 5.0]]]


@pytest.mark.parametrize(("given", "returned"), [("bfloat16", "float32"), ("float64", "float64")])
def test_scores_are_float32_or_better(given, returned):
    score = torch.full((1, 1), -7.0, dtype=getattr(torch, given))
    result = ratio.per_token_score(score, torch.tensor([[3]]))
    assert result.dtype == getattr(torch, returned)
    # −7/3 to more digits than bfloat16 has
    assert result.item() == pytest.approx(-7 / 3, rel=1e-6)


def test_guarded_exp_is_exp_inside_and_constant_outside():
    value = torch.tensor([-800.0, -20.0, -1.0, 0.0, 1.0, 20.0, 89.0, 800.0, math.inf, -math.inf])
    top, bottom = math.exp(20), math.exp(-20)
    expected = [bottom, bottom, math.exp(-1), 1, math.e, top, top, top, top, bottom]
    torch.testing.assert_close(ratio.guarded_exp(value), torch.tensor(expected))
    torch.testing.assert_close(ratio.guarded_exp(value, 1.0).max(), torch.tensor(math.e))


def test_guarded_exp_has_a_finite_gradient_and_keeps_nan():
    value = torch.tensor([800.0, 1.0, math.nan], requires_grad=True)
    result = ratio.guarded_exp(value)
    assert result[2].isnan()
    result[:2].sum().backward()
    torch.testing.assert_close(value.grad[:2], torch.tensor([0.0, math.e]))


def test_relative_exp_of_hand_made_values():
    value = torch.tensor([[800.0, 800.0 - math.log(4.0), math.nan], [-math.inf, -math.inf, 5.0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    result = ratio.relative_exp(value, mask, (1,))
    # row 0: exp(0), exp(−log 4), masked; row 1: two weights of 0, masked
    torch.testing.assert_close(
        result, torch.tensor([[1.0, 0.25, 0.0], [0.0, 0.0, 0.0]]), rtol=1e-4, atol=0
    )
    assert (
        ratio.relative_exp(torch.tensor([math.nan, 0.0]), torch.ones(2).bool(), (0,)).isnan().all()
    )


def test_clamped_entries_are_counted_inside_the_mask_only():
    value = torch.tensor([[-21.0, 20.0, 25.0], [3.0, 800.0, math.nan]])
    mask = torch.tensor([[True, True, True], [True, False, True]])
    # beyond ±20 and in the mask: −21 and 25
    assert ratio.clamped_count(value, mask).item() == 2
    assert ratio.clamped_count(value, mask, 2.0).item() == 4
    assert ratio.clamped_count(value, torch.zeros_like(mask)).item() == 0
