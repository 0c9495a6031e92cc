"""Logged rows as one series per metric: placeholder, replaced on merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np


def phase_series(rows: Iterable[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """One value per phase and metric: the mean, the maximum where the name ends in `max`."""
    kept = [row for row in rows if "phase" in row]
    phases = sorted({int(row["phase"]) for row in kept})
    names = sorted({name for row in kept for name in row} - {"step", "phase"})
    found: dict[str, np.ndarray] = {}
    for name in names:
        largest = name.endswith("max") or name == "train/grad_norm"
        values = []
        for phase in phases:
            logged = [row[name] for row in kept if int(row["phase"]) == phase and name in row]
            values.append(float((np.max if largest else np.mean)(logged)) if logged else np.nan)
        found[name] = np.array(values)
    return found
