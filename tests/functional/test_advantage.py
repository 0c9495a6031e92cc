"""Advantages on numbers worked by hand, without verdicts and without variance."""

import math
from functools import partial

import pytest
import torch

from stabledrl.functional import advantage

NAN = math.nan
ZERO_SUM = (
    advantage.centered,
    advantage.standardized,
    advantage.leave_one_out,
    advantage.softmax,
    partial(advantage.softmax, temperature=0.3),
)
EVERY = (*ZERO_SUM, partial(advantage.asymmetric, negative_weight=0.5))

# group 0: mean 3, differences −2, −1, 3; group 1: one verdict missing, mean 1, differences 1, −1
REWARD = torch.tensor([[1.0, 2.0, 6.0], [2.0, NAN, 0.0]])


def test_centered():
    assert advantage.centered(REWARD).tolist() == [[-2.0, -1.0, 3.0], [1.0, 0.0, -1.0]]


def test_standardized_by_sample_and_population_deviation():
    sample = advantage.standardized(REWARD, epsilon=0.5)
    # sample variances (4+1+9)/2 = 7 and (1+1)/1 = 2
    first, second = math.sqrt(7) + 0.5, math.sqrt(2) + 0.5
    expected = [[-2 / first, -1 / first, 3 / first], [1 / second, 0, -1 / second]]
    torch.testing.assert_close(sample, torch.tensor(expected))
    population = advantage.standardized(REWARD, epsilon=0.5, sample_standard_deviation=False)
    # population variances 14/3 and 2/2 = 1
    first, second = math.sqrt(14 / 3) + 0.5, 1.5
    expected = [[-2 / first, -1 / first, 3 / first], [1 / second, 0, -1 / second]]
    torch.testing.assert_close(population, torch.tensor(expected))


def test_asymmetric():
    # of [-2, -1, 3] and [1, 0, -1] the negative ones are halved, or dropped
    halved = advantage.asymmetric(REWARD, negative_weight=0.5)
    assert halved.tolist() == [[-1.0, -0.5, 3.0], [1.0, 0.0, -0.5]]
    assert advantage.asymmetric(REWARD).tolist() == [[0.0, 0.0, 3.0], [1.0, 0.0, 0.0]]


def test_softmax_by_hand():
    # e^r = 1, 2, 4 and, the other way round, 4, 2, 1; then one verdict missing: 1, 3 and 3, 1
    reward = torch.tensor([[1.0, 2.0, 4.0], [1.0, NAN, 3.0]]).log()
    expected = torch.tensor([[1 / 7 - 4 / 7, 0, 4 / 7 - 1 / 7], [1 / 4 - 3 / 4, 0, 2 / 4]])
    torch.testing.assert_close(advantage.softmax(reward), expected)
    # at half the temperature they are squared: 1, 4, 16 and 1, 9
    expected = torch.tensor([[-15 / 21, 0, 15 / 21], [-8 / 10, 0, 8 / 10]])
    torch.testing.assert_close(advantage.softmax(reward, temperature=0.5), expected)


def test_softmax_knows_no_common_offset_and_no_bound():
    reward = torch.tensor([[3.0, 1.0, -2.0, 0.5]])
    shifted = advantage.softmax(reward + 1000)
    torch.testing.assert_close(shifted, advantage.softmax(reward), rtol=1e-4, atol=0)
    # far apart: the best one against the worst one
    assert advantage.softmax(1e6 * reward).tolist() == [[1.0, 0.0, -1.0, 0.0]]


def test_leave_one_out():
    # 1 − (2+6)/2, 2 − (1+6)/2, 6 − (1+2)/2; 2 − 0, none, 0 − 2
    assert advantage.leave_one_out(REWARD).tolist() == [[-3.0, -1.5, 4.5], [2.0, 0.0, -2.0]]


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reward", [0.1, 1.0, 1 / 3, -7.7, 1e6])
def test_equal_rewards_give_exactly_zero(function, dtype, reward):
    for members in (1, 2, 4, 7, 16):
        assert function(torch.full((3, members), reward, dtype=dtype)).eq(0).all()


@pytest.mark.parametrize("function", EVERY)
def test_missing_verdicts(function):
    reward = torch.tensor([[1.0, NAN, 0.0, 0.0], [NAN, NAN, 5.0, NAN], [NAN] * 4])
    result = function(reward)
    assert result.isfinite().all()
    # the others are what they are in the group without that member; one verdict or none gives 0
    torch.testing.assert_close(result[0, [0, 2, 3]], function(torch.tensor([[1.0, 0.0, 0.0]]))[0])
    assert result[0, 1] == 0
    assert result[1:].eq(0).all()
    assert result[0, 0] > 0 > result[0, 2]


@pytest.mark.parametrize("function", EVERY)
def test_groups_do_not_touch_one_another(function):
    reward = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    changed = reward.clone()
    changed[0] = torch.tensor([100.0, -50.0, 0.0, 3.0, 8.0])
    torch.testing.assert_close(function(changed)[1:], function(reward)[1:], rtol=0, atol=0)


@pytest.mark.parametrize("function", ZERO_SUM)
def test_a_group_sums_to_zero(function):
    reward = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(function(reward).sum(-1), torch.zeros(3), rtol=0, atol=1e-5)


def test_leave_one_out_is_the_scaled_centered_advantage():
    reward = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(advantage.leave_one_out(reward), advantage.centered(reward) * 6 / 5)
