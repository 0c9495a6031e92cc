"""The alarms of a collapsing run: each is a function of the logged series, series -> phase or None.

A series holds one value per rollout phase, NaN where the phase did not log the metric. What is
usual is taken from the run itself, by median and MAD of its first phases, because levels differ
between tasks, models and ratio levels by orders of magnitude. Every alarm looks only backwards: a
phase that raised it raises it still when more phases are known. The phase returned is the first of
those that were out of bounds, not the one in which that had lasted long enough to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from stabledrl.diagnostics.falls import DEVIATION, falls

Series = Mapping[str, Sequence[float] | NDArray[np.float64]]
Alarm = Callable[[Series], int | None]
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]

BASELINE = 10  # logged phases that say what is usual
MEMORY = 50  # phases that a slowly moving metric is compared with
OUTLYING = 10.0  # such deviations from the median are noise no more, not even heavy-tailed noise
INFINITE = 1e100  # stands for infinity, with which nothing can be computed
ALL_SOLVED = 0.9  # solve rate from which equal rewards in a group are success


@dataclass(frozen=True)
class Logged:
    """A metric where it was logged: phases [logged], values [logged]."""

    phases: NDArray[np.int64]
    values: Values

    def phase(self, index: int | None) -> int | None:
        """Phase of an index into the values."""
        return None if index is None else int(self.phases[index])


@dataclass(frozen=True)
class Usual:
    """Median of a metric and its standard deviation as estimated from the MAD."""

    center: float
    spread: float

    def far_above(self, factor: float) -> float:
        """What is above `factor` times the median and above all noise."""
        return self.center + max((factor - 1) * abs(self.center), OUTLYING * self.spread)


def logged(series: Series, name: str) -> Logged:
    """The metric without the phases that did not log it; empty if it is unknown."""
    values = np.asarray(series.get(name, ()), dtype=np.float64)
    phases = np.flatnonzero(~np.isnan(values))
    return Logged(phases, np.clip(values[phases], -INFINITE, INFINITE))


def beside(series: Series, name: str, metric: Logged) -> Values:
    """Another metric in the phases of this one, NaN where it was not logged."""
    other = logged(series, name)
    values = np.full(len(metric.phases), np.nan)
    common = np.isin(metric.phases, other.phases)
    values[common] = other.values[np.isin(other.phases, metric.phases)]
    return values


def usual(values: Values) -> Usual | None:
    """What is usual at the beginning; None while fewer than BASELINE values are known."""
    first = values[:BASELINE]
    if len(first) < BASELINE:
        return None
    center = float(np.median(first))
    return Usual(center, DEVIATION * float(np.median(np.abs(first - center))))


def sustained(flags: Flags | Counts, needed: int = 3, window: int = 5) -> int | None:
    """First index of the earliest `window` neighbours among which `needed` flags are set.

    A count instead of a flag stands for as many.
    """
    total = np.concatenate([np.zeros(window, dtype=np.int64), flags.cumsum()])
    reached = np.flatnonzero(total[window:] - total[:-window] >= needed)
    if not len(reached):
        return None
    last = int(reached[0])
    first = max(0, last - window + 1)
    return first + int(np.flatnonzero(flags[first : last + 1])[0])


# --- causes ------------------------------------------------------------------------------------


def gradient_spike(series: Series) -> int | None:
    """train/grad_norm at 50 times the usual once, or at 10 times the usual in 3 of 5 phases."""
    norm = logged(series, "train/grad_norm")
    expected = usual(norm.values)
    if expected is None or expected.center == 0:
        return None
    large = (norm.values > expected.far_above(10)).astype(np.int64)
    return norm.phase(sustained(large + 2 * (norm.values > expected.far_above(50))))


def ratio_noise(series: Series) -> int | None:
    """train/ratio/noise_std at 6 times the usual in five phases in a row; never if it is off."""
    return _rise(logged(series, "train/ratio/noise_std"), 6)


def ess_drop(series: Series) -> int | None:
    """train/ess below half the usual, and below all noise, in 3 of 5 phases."""
    share = logged(series, "train/ess")
    expected = usual(share.values)
    if expected is None:
        return None
    bound = min(expected.center / 2, expected.center - OUTLYING * expected.spread)
    return share.phase(sustained(share.values < bound))


def policy_drift(series: Series) -> int | None:
    """train/drift/old at 10 times the usual in five phases in a row: phases move the policy far."""
    return _rise(logged(series, "train/drift/old"), 10)


def kl_explosion(series: Series) -> int | None:
    """train/kl at 10 times its median over the 50 phases before, in 3 of 5 phases.

    A penalised policy starts at its reference, so the beginning says nothing about what is usual.
    """
    divergence = logged(series, "train/kl")
    values = divergence.values
    if len(values) <= BASELINE or not values.any():  # no penalty: 0 throughout
        return None
    flags = np.zeros(len(values), dtype=np.bool_)
    center, spread = _moving(values)
    known = (center != 0) | (spread != 0)
    bound = center + np.maximum(9 * np.abs(center), OUTLYING * spread)
    flags[BASELINE:] = known & (values[BASELINE:] > bound)
    return divergence.phase(sustained(flags))


# --- what the policy writes ----------------------------------------------------------------------


def token_share(series: Series) -> int | None:
    """train/completions/top_token_share → 1: at least 0.9, and twice as near to 1 as usual."""
    share = logged(series, "train/completions/top_token_share")
    expected = usual(share.values)
    if expected is None:
        return None
    bound = max(0.9, (1 + expected.center) / 2)
    return share.phase(sustained(share.values >= bound, 5))


def length_to_one(series: Series) -> int | None:
    """train/completions/mean_length → 1: below 1.5 tokens, or below 5 % of the usual."""
    length = logged(series, "train/completions/mean_length")
    expected = usual(length.values)
    if expected is None or expected.center < 3:
        return None
    return length.phase(sustained(length.values < max(1.5, expected.center / 20), 5))


def length_to_max(series: Series) -> int | None:
    """train/completions/mean_length → max: all completions at the longest length there is.

    The longest is the largest train/completions/max_length so far, if it has stopped growing;
    without that metric it is a mean length that stands still well above the usual. Completions
    that were about as long from the beginning (tasks of fixed length) raise nothing.
    """
    length = logged(series, "train/completions/mean_length")
    expected = usual(length.values)
    if expected is None:
        return None
    longest = beside(series, "train/completions/max_length", length)
    limit = np.maximum.accumulate(np.fmax(longest, length.values))
    shortest = sliding_window_view(length.values, 5).min(-1)  # of five phases in a row
    stands = limit[4:] <= 1.01 * limit[:-4]
    reached = (shortest >= 0.95 * limit[4:]) & (expected.center < 0.8 * limit[4:]) & stands
    return length.phase(int(reached.argmax()) if reached.any() else None)


# --- outcomes ------------------------------------------------------------------------------------


def zero_group_std(series: Series) -> int | None:
    """train/reward_std → 0: below 5 % of the usual in 5 phases in a row, though not all is solved.

    Silent where groups without differences were usual from the beginning.
    """
    deviation = logged(series, "train/reward_std")
    expected = usual(deviation.values)
    if expected is None or deviation.values[:BASELINE].min() == 0:
        return None
    success = beside(series, "train/solved", deviation) >= ALL_SOLVED
    equal = deviation.values < 0.05 * expected.center
    return deviation.phase(sustained(equal & ~success, 5))


def reward_collapse(series: Series) -> int | None:
    """Solve rate or reward below half its running maximum, 10-phase means, by more than noise.

    The phase is the first after the one in which the running maximum last held. If both fell, it is
    that of the fall that was found first.
    """
    found = []
    for name in ("train/solved", "train/reward"):
        metric = logged(series, name)
        found += [
            (int(metric.phases[fall.distinct]), int(metric.phases[fall.held + 1]))
            for fall in falls(metric.values)
            if fall.distinct is not None
        ]
    return min(found)[1] if found else None


# In the order in which one leads to the other: of two that moved in the same phase, the cause first
ALARMS: tuple[Alarm, ...] = (
    ratio_noise,
    gradient_spike,
    ess_drop,
    policy_drift,
    kl_explosion,
    token_share,
    length_to_one,
    length_to_max,
    zero_group_std,
    reward_collapse,
)

# Every metric that an alarm or the definition of a collapse reads
WATCHED = (
    "train/solved",
    "train/reward",
    "train/reward_std",
    "train/grad_norm",
    "train/kl",
    "train/ess",
    "train/ratio/noise_std",
    "train/drift/old",
    "train/completions/mean_length",
    "train/completions/max_length",
    "train/completions/top_token_share",
)


def _rise(metric: Logged, factor: float) -> int | None:
    """First phase of those in which a metric of positive size is far above the usual."""
    expected = usual(metric.values)
    if expected is None or (expected.center == 0 and expected.spread == 0):
        return None
    # of ten heavy-tailed values median and MAD can be far too small by chance, the largest hardly
    bound = max(expected.far_above(factor), 2 * float(metric.values[:BASELINE].max()))
    return metric.phase(sustained(metric.values > bound, 5))


def _moving(values: Values) -> tuple[Values, Values]:
    """Median and deviation, as in `Usual`, of the up to MEMORY values before each from BASELINE."""
    padded = np.concatenate([np.full(MEMORY, np.nan), values])
    windows = sliding_window_view(padded, MEMORY)[BASELINE : len(values)]
    early = min(len(windows), MEMORY - BASELINE)
    center = np.empty(len(windows))
    spread = np.empty(len(windows))
    for index in range(early):  # np.nanmedian of many rows is slow
        part = windows[index, MEMORY - BASELINE - index :]
        center[index] = np.median(part)
        spread[index] = np.median(np.abs(part - center[index]))
    center[early:] = np.median(windows[early:], axis=-1)
    spread[early:] = np.median(np.abs(windows[early:] - center[early:, None]), axis=-1)
    return center, DEVIATION * spread
