"""How soon the detector told of the collapses of a sweep, and whether it told of any in vain.

    python benchmarks/detection.py multirun/ablation

Reads the runs below a folder and judges each after every phase, as the callback does. Per run that
collapsed: the phase in which it began (the best 10-phase mean last held), the first warning, the
phase in which the definition was first met (10-phase mean below half its maximum), and the phase in
which the detector called it a fall that noise does not explain. Per run that did not: its warnings.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stabledrl.diagnostics.alarms import WATCHED, logged, reward_collapse
from stabledrl.diagnostics.arms import label_arms
from stabledrl.diagnostics.collapse import detect
from stabledrl.diagnostics.falls import falls
from stabledrl.diagnostics.runs import Run, read_run
from stabledrl.jobs.comparison import runs_below


def warnings(series: Mapping[str, Any]) -> dict[str, int]:
    """Phase in which each alarm was first raised, by name, the earliest first."""
    watched = {name: series[name] for name in WATCHED if name in series}
    length = max(len(values) for values in watched.values())
    found: dict[str, int] = {}
    for phase in range(length):
        verdict = detect({name: values[: phase + 1] for name, values in watched.items()})
        for signal in verdict.signals:
            found.setdefault(signal.name, phase)
    return found


def line(run: Run) -> str:
    """One run in words."""
    raised = warnings(run.series)
    told = ", ".join(f"{name} {phase}" for name, phase in raised.items()) or "no warning"
    verdict = run.verdict
    if verdict is None or not verdict.collapsed or verdict.began is None:
        return f"did not collapse: {told}"
    first = min(raised.values(), default=None)
    fall = raised.get(reward_collapse.__name__)
    solved = logged(run.series, "train/solved")
    met = solved.phases[falls(solved.values)[-1].fallen]
    return (
        f"collapsed, began {verdict.began}, first warning {first}, "
        f"definition met {met}, called a fall {fall}: {told}"
    )


def main() -> None:
    """Print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a multirun folder")
    runs = label_arms([read_run(path) for path in runs_below(parser.parse_args().folder)])
    for run in sorted(runs, key=lambda run: (run.arm, run.seed or 0)):
        if run.verdict is not None:
            print(f"{run.arm}, seed {run.seed}: {line(run)}")


if __name__ == "__main__":
    main()
