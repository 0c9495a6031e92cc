"""The bypass rate that job=probe predicts against the one that runs then have.

    python benchmarks/bypass.py multirun/predicted multirun/measured

Matches the probes of one folder with the runs of another by estimator. Of a run it takes the first
update of every phase, where θ = θ_old if nothing is learnt; ± is one standard error, of the probe
over groups and of the run over phases. Noise is that of the log-ratios (nats), the root mean square
over phases for the run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.estimator_table import estimator_name, standard_error
from stabledrl.diagnostics.series import read_rows
from stabledrl.jobs.comparison import runs_below


def by_estimator(folder: Path) -> dict[str, Path]:
    """Run directories below a folder."""
    found = {}
    for run in runs_below(folder):
        settings = yaml.safe_load((run / "config.yaml").read_text())
        found[estimator_name(settings["estimator"])] = run
    return found


def first_updates(run: Path) -> tuple[list[float], list[float]]:
    """Bypass rate and noise of the first update of every phase."""
    first: dict[int, tuple[float, float]] = {}
    for row in read_rows(run / "metrics.csv"):
        if "train/bypass_rate" in row and "train/ratio/noise_std" in row:
            values = row["train/bypass_rate"], row["train/ratio/noise_std"]
            first.setdefault(int(row["phase"]), values)
    return [rate for rate, _ in first.values()], [noise for _, noise in first.values()]


def line(name: str, predicted: Mapping[str, Any], run: Path) -> str:
    """A row of the table."""
    rates, noises = first_updates(run)
    rate, expected = statistics.fmean(rates), predicted["bypass_rate"]
    noise = math.sqrt(statistics.fmean(value**2 for value in noises))
    cells = (
        f"`{name}`",
        f"{expected:.4f} ± {predicted['bypass_error']:.4f}",
        f"{rate:.4f} ± {standard_error(rates):.4f}",
        f"{rate / expected:.2f}" if expected else "–",
        f"{predicted['std']:.3f}, {noise:.3f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print one line per estimator that both folders hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("predicted", type=Path, help="a folder with runs of job=probe")
    parser.add_argument("measured", type=Path, help="a folder with runs of job=train")
    arguments = parser.parse_args()
    runs = by_estimator(arguments.measured)
    print("| estimator | predicted bypass | measured bypass | measured/predicted | noise |")
    print("|---|---|---|---|---|")
    for name, probe in sorted(by_estimator(arguments.predicted).items()):
        if name in runs:
            metrics = json.loads((probe / "summary.json").read_text())["metrics"]
            print(line(name, metrics["noise"]["independent"], runs[name]))


if __name__ == "__main__":
    main()
