"""From the rows of metrics.csv, one per optimiser step, to one value per rollout phase."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Row = Mapping[str, float]
PhaseSeries = dict[str, NDArray[np.float64]]

# of several updates the largest value, where an average would hide what it is about
LARGEST = ("max", "train/grad_norm", "train/grad_spike")
NO_METRIC = {"step", "phase"}


def read_cells(path: Path) -> list[dict[str, str]]:
    """Rows of a metrics.csv as written, without empty cells and without a row that a kill cut."""
    lines = path.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        del lines[-1]
    return [{name: value for name, value in row.items() if value} for row in csv.DictReader(lines)]


def read_rows(path: Path) -> list[dict[str, float]]:
    """The same as numbers. Raises ValueError, which names file and row, for a cell that is none."""
    rows = []
    for number, cells in enumerate(read_cells(path), start=1):
        try:
            rows.append({name: float(value) for name, value in cells.items()})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: row {number} does not hold numbers only") from error
    return rows


def phase_series(rows: Iterable[Row]) -> PhaseSeries:
    """One array per metric, indexed by phase, NaN where the phase did not log it.

    Rows without `train/loss` are validations, which belong to no phase, and are passed over.
    Within a phase: the largest value of metrics named `…max` and of the gradient norm and its
    spike (an infinite norm stays infinite), the mean of all others. NaN cells count as not logged.
    """
    phases: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if "train/loss" in row and "phase" in row:
            phases[int(row["phase"])].append(row)
    length = max(phases, default=-1) + 1
    series: PhaseSeries = {}
    for phase, members in phases.items():
        for name, value in summarized(members).items():
            series.setdefault(name, np.full(length, np.nan))[phase] = value
    return dict(sorted(series.items()))


def summarized(rows: Sequence[Row]) -> dict[str, float]:
    """The rows of one phase as one value per metric."""
    names = {name for row in rows for name in row} - NO_METRIC
    summary = {}
    for name in sorted(names):
        values = np.array([row[name] for row in rows if name in row], dtype=np.float64)
        values = values[~np.isnan(values)]
        if len(values):
            summary[name] = float(values.max() if name.endswith(LARGEST) else values.mean())
    return summary
