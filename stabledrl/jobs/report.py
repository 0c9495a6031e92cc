"""job=report: any runs compared, in tables and figures."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from stabledrl.declarations import declares
from stabledrl.errors import UserError
from stabledrl.jobs.comparison import compare, find_runs
from stabledrl.jobs.record import Record


@declares(trains_on=None, loads_model=False)
def report(cfg: DictConfig, runs: list[str], arms: list[str], directory: str) -> None:
    """Write report.md, report.html and figures/ about runs into a directory."""
    if not runs:
        raise UserError("job.runs is empty: name runs, such as 'job.runs=[multirun/seeds]'")
    found = find_runs(runs)
    record = Record(cfg)
    page = compare(found, Path(directory), f"Comparison: {', '.join(runs)}", arms)
    record.finish({"runs": len(found)}, None, rows=[("report", str(page))])
