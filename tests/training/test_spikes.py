"""Gradient norms against the median of those before, by hand."""

import math

from stabledrl.training.spikes import WINDOW, Spikes


def test_a_norm_is_compared_with_the_median_of_those_before():
    spikes = Spikes()
    # medians before: none, 2, 3, 4, 3
    assert [spikes(norm) for norm in (2.0, 4.0, 6.0, 1.0, 30.0)] == [1, 2, 2, 0.25, 10]
    assert spikes.norms == [2, 4, 6, 1, 30]


def test_the_window_moves_on_and_can_be_handed_over():
    spikes = Spikes([1.0] * WINDOW)
    for _ in range(WINDOW):
        spikes(3.0)
    assert spikes.norms == [3.0] * WINDOW
    assert Spikes(spikes.norms)(6.0) == 2


def test_gradients_of_zero_and_without_a_finite_norm_are_no_yardstick():
    spikes = Spikes([0.0, 0.0])
    assert spikes(5.0) == 1
    assert Spikes([2.0])(math.inf) == math.inf
    assert math.isnan(Spikes([2.0])(math.nan))
    spikes = Spikes([2.0])
    spikes(math.inf)
    assert spikes.norms == [2.0]
