"""Group filters on groups worked by hand."""

import math

import pytest
import torch

from stabledrl.functional import group_filter

NAN = math.nan
# of five: 0, 1, 4 and 5 solved; then 1 of 2 verdicts (an unjudged one counts as unsolved, but not
# here); no verdict at all
SOLVED = torch.tensor(
    [[0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 1, 1], [1] * 5, [1, 0, 0, 0, 0], [0] * 5]
).float()
REWARD = SOLVED.clone()
REWARD[4, 2:] = NAN
REWARD[5] = NAN


def test_none_keeps_every_group():
    assert group_filter.none(REWARD, SOLVED).tolist() == [True] * 6


def test_accuracy_range_keeps_its_bounds():
    kept = group_filter.accuracy_range(REWARD, SOLVED)
    assert kept.tolist() == [False, True, True, False, True, False]
    kept = group_filter.accuracy_range(REWARD, SOLVED, lowest=0.25, highest=1.0)
    assert kept.tolist() == [False, False, True, True, True, False]
    everything = group_filter.accuracy_range(REWARD, SOLVED, lowest=0.0, highest=1.0)
    assert everything.tolist() == [True] * 5 + [False]  # but where nothing is known


@pytest.mark.parametrize("members", [5, 10, 15, 35, 100])
def test_a_fifth_and_four_fifths_are_inside_whatever_the_group_size(members):
    fifth = (torch.arange(members) < members // 5).float()
    solved = torch.stack([fifth, 1 - fifth, (torch.arange(members) < members // 5 - 1).float()])
    assert group_filter.accuracy_range(solved, solved).tolist() == [True, True, False]


def test_accuracy_is_of_what_is_solved_not_of_the_reward():
    reward = torch.tensor([[0.9, 0.9, 0.9, 0.9], [0.0, 0.1, 0.0, 0.1]])
    solved = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    assert group_filter.accuracy_range(reward, solved).tolist() == [True, False]


def test_nonzero_std_drops_groups_of_equal_rewards():
    kept = group_filter.nonzero_std(REWARD, SOLVED)
    assert kept.tolist() == [False, True, True, False, True, False]
    # the mean of seven times 0.1 is not 0.1 in float32; one verdict is equal to itself
    reward = torch.tensor([[0.1] * 7, [0.1] * 6 + [NAN], [0.1] + [NAN] * 6, [0.1] * 6 + [0.2]])
    assert group_filter.nonzero_std(reward, reward).tolist() == [False, False, False, True]
