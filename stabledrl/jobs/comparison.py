"""Finds runs on disk and writes their report: what job=report and the end of a multirun share."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stabledrl.diagnostics.report import write_report
from stabledrl.diagnostics.runs import is_run, read_run
from stabledrl.errors import UserError

# Folders inside which no run lies, and which may be large.
PASSED_OVER = {"checkpoints", "completions", "figures", "model", "wandb"}
JOB = "stabledrl.jobs.report.report"  # a report is no run to be compared


def find_runs(patterns: Iterable[str]) -> list[Path]:
    """The run directories that paths and globs name, each once, those of multirun folders too.

    UserError naming every pattern that matches no run.
    """
    found: dict[Path, Path] = {}
    empty = []
    for pattern in patterns:
        below = [run for place in _matches(pattern) for run in runs_below(place)]
        found |= {run.resolve(): run for run in below if run.resolve() not in found}
        if not below:
            empty.append(pattern)
    if empty:
        raise UserError(
            f"job.runs: no run matches {', '.join(map(repr, empty))} in {Path.cwd()} "
            "(a run directory, a multirun folder, or a glob of them)"
        )
    return list(found.values())


def _matches(pattern: str) -> list[Path]:
    """What is there under exactly this name, or else what the glob matches."""
    path = Path(pattern).expanduser()
    return [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))


def runs_below(place: Path) -> Iterator[Path]:
    """The place itself if it is a run, or the runs in it in order; of a file, the run it is of."""
    place = place if place.is_dir() else place.parent
    for folder, children, _ in os.walk(place):
        directory = Path(folder)
        if is_run(directory):
            children.clear()
            yield directory
        children[:] = sorted(
            name for name in children if name not in PASSED_OVER and not name.startswith(".")
        )


def compare(directories: Iterable[Path], where: Path, title: str, arms: Sequence[str] = ()) -> Path:
    """Report on the runs, in the folder `where`; returns the path of report.html.

    arms: patterns of their labels, all if there are none. UserError if no run has finished or a
    pattern matches no arm.
    """
    runs = [read_run(directory) for directory in directories]
    runs = [run for run in runs if run.settings.get("job._target_") != JOB]
    try:
        return write_report(runs, where, title, arms)
    except ValueError as error:
        raise UserError(f"nothing to report: {error}") from error
