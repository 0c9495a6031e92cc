"""Normalizations beyond the table: token units, empty groups, the whole-step mark."""

import math

import pytest
import torch

from stabledrl.functional import normalization

LOG_WEIGHT = torch.tensor([[[1.0, 2.0], [4.0, 8.0]], [[3.0, 5.0], [7.0, 7.0]]]).log()
# member 0 of group 0 has one token, member 1 two; in group 1 only one member has a verdict
MASK = torch.tensor([[[True, False], [True, True]], [[True, True], [False, False]]])
LENGTH = torch.tensor([[1, 2], [2, 2]])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        # G = 2 | 1
        (normalization.group, [1 / 2, 0, 4 / 2, 8 / 2, 3, 5, 0, 0]),
        # sums over members and units: 1+4+8 = 13 | 3+5 = 8
        (normalization.self_normalized, [1 / 13, 0, 4 / 13, 8 / 13, 3 / 8, 5 / 8, 0, 0]),
        # (13+8)/2 = 10.5
        (normalization.batch_self, [1 / 10.5, 0, 4 / 10.5, 8 / 10.5, 3 / 10.5, 5 / 10.5, 0, 0]),
        # G·|y| = 2·1, 2·2 | 1·2
        (normalization.sequence_token_mean, [1 / 2, 0, 4 / 4, 8 / 4, 3 / 2, 5 / 2, 0, 0]),
        # G·R = 2·6 | 1·6
        (normalization.fixed_length, [1 / 12, 0, 4 / 12, 8 / 12, 3 / 6, 5 / 6, 0, 0]),
        # tokens with a verdict 1+2+2 = 5, halved 2.5
        (normalization.token, [1 / 2.5, 0, 4 / 2.5, 8 / 2.5, 3 / 2.5, 5 / 2.5, 0, 0]),
        (normalization.length_weighted, [1 / 2.5, 0, 8 / 2.5, 16 / 2.5, 6 / 2.5, 10 / 2.5, 0, 0]),
        (normalization.unnormalized, [1, 0, 4, 8, 3, 5, 0, 0]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_token_units_by_hand(function, expected):
    result = function(LOG_WEIGHT, MASK, LENGTH, 6)
    torch.testing.assert_close(result.flatten(), torch.tensor(expected).float())


def test_a_group_nobody_is_left_in_gives_zero(normalization):
    mask = MASK.clone()
    mask[0] = False
    log_weight = LOG_WEIGHT.clone()
    log_weight[0] = math.nan
    result = normalization(log_weight, mask, LENGTH, 6)
    assert result[0].eq(0).all()
    assert result[1, 0].gt(0).all()
    assert result.isfinite().all()
    assert normalization(LOG_WEIGHT, torch.zeros_like(MASK), LENGTH, 6).eq(0).all()


def test_what_the_mask_hides_changes_nothing(normalization):
    absurd = torch.where(MASK, LOG_WEIGHT, math.nan)
    expected = normalization(LOG_WEIGHT, MASK, LENGTH, 6)
    assert torch.equal(normalization(absurd, MASK, LENGTH, 6), expected)
    longer = LENGTH.clone()
    longer[1, 1] = 1000  # no verdict: its tokens do not count either
    assert torch.equal(normalization(LOG_WEIGHT, MASK, longer, 6), expected)


def test_an_empty_completion_is_finite(normalization):
    log_weight = torch.zeros(1, 2, 1)
    mask = torch.ones(1, 2, 1, dtype=torch.bool)
    assert normalization(log_weight, mask, torch.tensor([[0, 3]]), 4).isfinite().all()
    assert normalization(log_weight, mask, torch.tensor([[0, 0]]), 4).isfinite().all()


def test_a_nan_weight_stays_nan(normalization):
    log_weight = LOG_WEIGHT.clone()
    log_weight[0, 1, 0] = math.nan
    assert normalization(log_weight, MASK, LENGTH, 6)[0, 1, 0].isnan()


def test_exactly_the_functions_that_look_across_groups_are_marked(normalization):
    changed = LOG_WEIGHT.clone()
    changed[1] += 1
    mask, length = MASK.clone(), LENGTH.clone()
    mask[1, 0, 1] = False
    length[1, 0] = 1
    before = normalization(LOG_WEIGHT, MASK, LENGTH, 6)[0]
    after = normalization(changed, mask, length, 6)[0]
    assert getattr(normalization, "needs_whole_step", False) == (not torch.equal(before, after))
