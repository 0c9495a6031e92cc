"""Learning-rate factors worked by hand."""

import pytest

from stabledrl.training.schedule import constant, linear


def test_constant_is_one():
    assert [constant(step, 5) for step in range(6)] == [1.0] * 6


def test_warmup_climbs_in_equal_steps_and_never_starts_at_zero():
    # (step + 1) / (3 + 1)
    assert [constant(step, 9, 3) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_to_zero_after_the_last_step():
    # 1 - step / 4
    assert [linear(step, 4) for step in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_linear_with_warmup():
    # min(1, (step + 1)/2) * (1 - step/4)
    expected = [0.5 * 1.0, 1.0 * 0.75, 0.5, 0.25, 0.0]
    assert [linear(step, 4, 1) for step in range(5)] == pytest.approx(expected)
