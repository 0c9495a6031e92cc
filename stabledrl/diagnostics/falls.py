"""The definition of a collapse: where a 10-phase mean falls below half its running maximum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

SMOOTHED = 10  # phases in a mean
FALLEN = 0.5  # share of the running maximum below which it has fallen
RECOVERED = 0.6  # share above which it is back
HELD = 3.0  # standard errors below which a mean is no longer at the running maximum
DISTINCT = 8.0  # standard errors of a fall that is more than noise
DEVIATION = 1.4826  # times MAD: standard deviation of a normal distribution


@dataclass(frozen=True)
class Fall:
    """One fall of a series; numbers are indices into it.

    held: where the running maximum of the mean last held, within its noise. fallen: where the mean
    was first below half of it. recovered: where it was first above 60 % of the running maximum
    again, None if that did not happen. distinct: where the fall was first larger than the noise
    before it explains, None if it never was.
    """

    held: int
    fallen: int
    recovered: int | None
    distinct: int | None


def falls(values: NDArray[np.float64]) -> list[Fall]:
    """All falls of a series without gaps, in order; none while it has fewer than ten values.

    A maximum that is not positive cannot be halved, so before it is there are no falls.
    """
    if len(values) < SMOOTHED:
        return []
    mean = sliding_window_view(values, SMOOTHED).mean(-1)
    highest = np.maximum.accumulate(mean)
    low = (mean < FALLEN * highest) & (highest > 0)
    back = mean > RECOVERED * highest
    found: list[Fall] = []
    at = 0
    while low[at:].any():
        fallen = at + int(low[at:].argmax())
        rest = back[fallen:]
        recovered = fallen + int(rest.argmax()) if rest.any() else None
        found.append(_fall(values, mean, fallen, recovered))
        if recovered is None:
            break
        at = recovered
    return found


def _fall(
    values: NDArray[np.float64], mean: NDArray[np.float64], fallen: int, recovered: int | None
) -> Fall:
    """fallen, recovered: indices of the mean, which lags by SMOOTHED − 1."""
    before = mean[:fallen]
    highest = float(before.max())
    last = fallen - 1 - int((before[::-1] == highest).argmax())
    # noise before the fall, from the changes between neighbours, so that a trend is none of it
    changes = np.diff(values[: last + SMOOTHED])
    typical = DEVIATION * float(np.median(np.abs(changes - np.median(changes))))
    slack = HELD * typical / math.sqrt(2 * SMOOTHED)
    held = fallen - 1 - int((before[::-1] >= highest - max(slack, 1e-9 * highest)).argmax())
    # outliers count here: one phase far below all others halves a mean of ten, but no median
    noise = DISTINCT * float(changes.std()) / math.sqrt(2 * SMOOTHED)
    median = np.median(sliding_window_view(values, SMOOTHED)[fallen:recovered], axis=-1)
    during = mean[fallen:recovered]
    bound = min(FALLEN * highest, highest - noise)
    distinct = np.flatnonzero((during < bound) & (median < RECOVERED * highest))
    lag = SMOOTHED - 1
    return Fall(
        held + lag,
        fallen + lag,
        None if recovered is None else recovered + lag,
        fallen + int(distinct[0]) + lag if len(distinct) else None,
    )
