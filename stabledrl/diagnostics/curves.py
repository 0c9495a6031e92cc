"""Curves of runs over phases, and the mean curve of an arm: what the figures draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stabledrl.diagnostics.runs import Run

WINDOW = 10  # phases of the running mean


class Curve(NamedTuple):
    """Phases and one value for each, both of the same length."""

    phase: np.ndarray
    value: np.ndarray


def curve(run: Run, name: str, positive: bool = False) -> Curve:
    """A metric of a run where it is finite, val/solved from its validations.

    positive: only what a logarithmic axis can show. Empty if the metric was not logged.
    """
    if name == "val/solved":
        points = [(item.phase, item.solved) for item in run.validations]
        phase, value = np.array(points, dtype=float).reshape(-1, 2).T
    else:
        value = np.asarray(run.series.get(name, np.empty(0)), dtype=float)
        phase = np.arange(len(value), dtype=float)
    kept = np.isfinite(value) & (value > 0 if positive else True)
    return Curve(phase[kept], value[kept])


def running_mean(item: Curve, geometric: bool = False, window: int = WINDOW) -> Curve:
    """Mean of the last `window` points, of fewer at the start; values > 0 if it is geometric."""
    value = np.log(item.value) if geometric else item.value
    mean = np.array([value[max(0, end - window) : end].mean() for end in range(1, len(value) + 1)])
    return Curve(item.phase, np.exp(mean) if geometric else mean)


def mean_curve(curves: Sequence[Curve], geometric: bool = False, until: float = math.inf) -> Curve:
    """Mean of the curves at every phase before `until` that more than half of them have.

    Geometric for a logarithmic axis, where the eye takes the mean that way. until: where the first
    of the runs ended; behind it the mean would jump to that of the survivors.
    """
    full = [item for item in curves if len(item.phase)]
    if not full:
        return Curve(np.empty(0), np.empty(0))
    phases = np.unique(np.concatenate([item.phase for item in full]))
    table = np.full((len(full), len(phases)), math.nan)
    for row, item in zip(table, full, strict=True):
        row[np.searchsorted(phases, item.phase)] = np.log(item.value) if geometric else item.value
    kept = (np.isfinite(table).sum(0) > len(full) / 2) & (phases <= until)
    mean = np.nanmean(table[:, kept], axis=0) if kept.any() else np.empty(0)
    return Curve(phases[kept], np.exp(mean) if geometric else mean)


def last_phase(run: Run) -> float:
    """Phases of training in a run, which is where its last validation stands."""
    return float(max((len(values) for values in run.series.values()), default=0))


def value_at(item: Curve, phase: float) -> float | None:
    """The value of the drawn line at a phase, between two points; None where there is no line."""
    if not len(item.phase) or not item.phase[0] <= phase <= item.phase[-1]:
        return None
    return float(np.interp(phase, item.phase, item.value))
