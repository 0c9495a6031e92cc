"""metrics.csv: one row per optimiser step and per validation, in order, resumable."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from stabledrl.diagnostics.series import read_cells


class MetricsFile(Logger):
    """Appends metrics to `<directory>/metrics.csv`.

    Lightning's CSVLogger deletes the file when it is given a directory again; this one keeps it, so
    that a resumed run goes on in it. The file is rewritten only when a new column appears.
    """

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._path = Path(directory, "metrics.csv")
        self._columns: list[str] = []
        self._pending: list[dict[str, Any]] = []

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "metrics"

    @property
    def version(self) -> str:
        """There is one file per directory, so no version."""
        return ""

    @property
    def save_dir(self) -> str:
        """Directory of the file."""
        return str(self._path.parent)

    @property
    @rank_zero_experiment
    def experiment(self) -> Path:
        """Path of the file."""
        return self._path

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the run directory holds config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """One row; `epoch`, which Lightning adds and which lags after a resume, is left out."""
        values = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        if values:
            self._pending.append({"step": int(step or 0), **values})

    @rank_zero_only
    def resume(self, step: int) -> None:
        """Drop what an earlier run logged after `step` optimiser steps, and go on from there."""
        rows = self._read()
        self._columns = sorted({name for row in rows for name in row} - {"step"})
        kept = [row for row in rows if int(row["step"]) < step or _validated_at(row, step)]
        self._write(kept)

    @rank_zero_only
    def save(self) -> None:
        """Write the pending rows."""
        if not self._pending:
            return
        columns = sorted({name for row in self._pending for name in row} - {"step"})
        if set(columns) <= set(self._columns):
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, ["step", *self._columns]).writerows(self._pending)
        else:
            earlier = self._read() if self._columns else []
            self._columns = sorted({*columns, *self._columns})
            self._write(earlier + self._pending)
        self._pending = []

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is left."""
        self.save()

    def _read(self) -> list[dict[str, Any]]:
        return list(read_cells(self._path)) if self._path.exists() else []

    def _write(self, rows: list[dict[str, Any]]) -> None:
        """Replace the file; through a temporary one, so that a kill loses nothing."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".csv.partial")
        with partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["step", *self._columns])
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(self._path)


def _validated_at(row: dict[str, Any], step: int) -> bool:
    """Whether the row is a validation made after exactly `step` optimiser steps."""
    return int(row["step"]) == step and "train/loss" not in row
