"""Collapse of the training solve rate: placeholder, replaced on merge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Signal:
    """A metric that left its healthy range, and the phase in which it did."""

    name: str
    phase: int


@dataclass(frozen=True)
class Verdict:
    """Whether a run collapsed, when that began and what moved, in order."""

    collapsed: bool
    began: int | None
    signals: tuple[Signal, ...] = ()

    @property
    def first_signal(self) -> Signal | None:
        """What moved first."""
        return self.signals[0] if self.signals else None


def detect(series: Mapping[str, Sequence[float]]) -> Verdict:
    """The 10-phase mean of train/solved falls below half its maximum and stays below 60 %."""
    solved = np.asarray(series.get("train/solved", []), dtype=float)
    if len(solved) < 10:
        return Verdict(False, None)
    mean = np.convolve(solved, np.ones(10) / 10, "valid")
    best = np.maximum.accumulate(mean)
    below = np.flatnonzero(mean < best / 2)
    if not len(below) or mean[-1] > 0.6 * best[-1]:
        return Verdict(False, None)
    began = int(below[0]) + 9
    spread = np.asarray(series.get("train/grad_norm", []), dtype=float)
    high = np.flatnonzero(spread[: began + 1] > 10) if len(spread) else []
    return Verdict(True, began, (Signal("grad_norm", int(high[0])),) if len(high) else ())
