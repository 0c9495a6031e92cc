"""Spread of gradient norms per arm of a sweep, to hold against what job=probe predicts.

    python benchmarks/gradient_spread.py multirun/ablation [--phases 10]

Reads the runs below a folder. Of the first phases of every run it takes the first update, where
θ = θ_old as in the probe, and prints the arms in the order of std/mean, each run's averaged over
the seeds. Early phases, because later the arms' policies are no longer alike.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from stabledrl.diagnostics.arms import label_arms
from stabledrl.diagnostics.runs import read_run
from stabledrl.diagnostics.series import read_rows
from stabledrl.jobs.comparison import runs_below


def first_updates(rows: Iterable[Mapping[str, float]], phases: int) -> list[float]:
    """Gradient norm of the first update of each of the first phases."""
    found: dict[int, float] = {}
    for row in rows:
        if "phase" in row and "train/grad_norm" in row:
            found.setdefault(int(row["phase"]), row["train/grad_norm"])
    return [found[phase] for phase in sorted(found)[:phases]]


def relative_spread(values: list[float]) -> float:
    """Sample standard deviation over mean."""
    return statistics.stdev(values) / statistics.fmean(values)


def main() -> None:
    """Print one line per arm, the steadiest first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a multirun folder")
    parser.add_argument("--phases", type=int, default=10, help="phases of each run (at least 2)")
    arguments = parser.parse_args()
    spreads: dict[str, list[float]] = defaultdict(list)
    for run in label_arms([read_run(path) for path in runs_below(arguments.folder)]):
        norms = first_updates(read_rows(run.directory / "metrics.csv"), arguments.phases)
        if len(norms) > 1:
            spreads[run.arm].append(relative_spread(norms))
    for arm, values in sorted(spreads.items(), key=lambda item: statistics.fmean(item[1])):
        runs = f"{len(values)} runs"
        print(f"{statistics.fmean(values):8.3f}  {runs:8}  {arm}")


if __name__ == "__main__":
    main()
