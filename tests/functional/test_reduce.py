"""Masked reductions and token log-probabilities."""

import math

import pytest
import torch

from stabledrl.functional.reduce import masked_mean, masked_sum, token_log_probability

VALUE = [[1.0, 2.0, math.inf], [math.nan, 5.0, -math.inf]]
MASK = torch.tensor([[True, True, False], [False, True, False]])


def test_masked_values_change_neither_the_result_nor_any_gradient():
    value = torch.tensor(VALUE, requires_grad=True)
    total, mean = masked_sum(value, MASK), masked_mean(value, MASK)
    # 1 + 2 + 5 = 8, over three entries
    assert total.item() == 8
    assert mean.item() == pytest.approx(8 / 3)
    (gradient,) = torch.autograd.grad(total + mean, value)
    # d total = 1 and d mean = 1/3 where counted
    torch.testing.assert_close(gradient, (MASK.float() * (1 + 1 / 3)))


def test_reduction_along_an_axis():
    value = torch.tensor(VALUE)
    assert masked_sum(value, MASK, -1).tolist() == [3.0, 5.0]
    assert masked_mean(value, MASK, -1).tolist() == [1.5, 5.0]
    assert masked_mean(value, MASK, 0).tolist() == [1.0, 3.5, 0.0]
    assert masked_mean(value, MASK, (0, 1)).item() == pytest.approx(8 / 3)


def test_an_empty_mask_gives_zero_and_zero_gradient():
    value = torch.tensor(VALUE, requires_grad=True)
    mean = masked_mean(value, torch.zeros_like(MASK))
    mean.backward()
    assert mean.item() == 0
    assert value.grad.tolist() == [[0.0] * 3] * 2


def test_token_log_probability_by_hand():
    # softmax of (0, log 3) is (1/4, 3/4); of (0, 0) it is (1/2, 1/2)
    logits = torch.tensor([[[0.0, math.log(3)], [7.0, 7.0]]])
    result = token_log_probability(logits, torch.tensor([[1, 0]]))
    torch.testing.assert_close(result, torch.tensor([[math.log(3 / 4), math.log(1 / 2)]]))


def test_token_log_probability_is_float32_even_for_half_precision_logits():
    # A uniform model over 1000 tokens gives −ln 1000; bfloat16 would give −6.90625.
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        result = token_log_probability(torch.zeros(2, 1000, dtype=dtype), torch.tensor([3, 999]))
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, torch.full((2,), -math.log(1000)))
    assert (
        token_log_probability(torch.zeros(1, 2).double(), torch.tensor([0])).dtype == torch.float64
    )


def test_token_log_probability_gradient_is_one_hot_minus_softmax():
    logits = torch.tensor([[0.0, math.log(3), -math.inf]], requires_grad=True)
    token_log_probability(logits, torch.tensor([0])).sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[3 / 4, -3 / 4, 0.0]]))


def test_a_target_outside_the_vocabulary_is_refused():
    with pytest.raises(RuntimeError):
        token_log_probability(torch.zeros(1, 4), torch.tensor([4]))
