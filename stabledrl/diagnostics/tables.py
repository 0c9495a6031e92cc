"""Tables of a comparison: one row per arm, one row per run, and the settings that differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stabledrl.diagnostics.arms import settings_that_differ
from stabledrl.diagnostics.collapse import Signal
from stabledrl.diagnostics.runs import Run
from stabledrl.diagnostics.summaries import (
    NONE,
    ArmSummary,
    best_held_out,
    final_held_out,
    final_training,
    peak_gradient,
    result,
)


@dataclass(frozen=True)
class Table:
    """Column heads and rows of text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def arm_table(summaries: Iterable[ArmSummary]) -> Table:
    """One row per arm; columns in which no arm has anything are left out."""
    columns = (
        "arm",
        "runs",
        "held-out solve rate, final",
        "held-out solve rate, best",
        "training solve rate, final",
        "job result",
        "collapsed",
        "95 % interval",
        "first signal",
        "peak gradient norm, median",
        "peak gradient norm, max",
        "bypass rate",
        "ratio noise",
    )
    rows = [
        (
            arm.arm,
            _count(arm),
            str(arm.final_held_out),
            str(arm.best_held_out),
            str(arm.final_training),
            str(arm.result) if math.isnan(arm.final_held_out.mean) else NONE,
            f"{arm.collapsed} of {arm.judged}" if arm.judged else NONE,
            _interval(arm.collapse_interval),
            arm.first_signal or NONE,
            number(arm.peak_gradient_median),
            number(arm.peak_gradient_max),
            number(arm.bypass_rate),
            number(arm.ratio_noise),
        )
        for arm in summaries
    ]
    return _without_empty_columns(Table(columns, tuple(rows)))


def run_table(runs: Iterable[Run]) -> Table:
    """One row per run, failed and unfinished ones as such."""
    columns = (
        "arm",
        "seed",
        "status",
        "phases",
        "held-out solve rate, final",
        "best",
        "training solve rate, final",
        "job result",
        "collapse began in phase",
        "signals, first to last",
        "peak gradient norm",
        "directory",
    )
    rows = [
        (
            run.arm,
            NONE if run.seed is None else str(run.seed),
            f"{run.status}: {run.error}" if run.error else run.status,
            str(_length(run)) if run.series else NONE,
            number(final_held_out(run)),
            number(best_held_out(run)),
            number(final_training(run)),
            NONE if run.validations else number(result(run)),
            _began(run),
            ", ".join(f"{s.name} ({s.phase})" for s in _signals(run)) or NONE,
            number(peak_gradient(run)),
            str(run.directory),
        )
        for run in runs
    ]
    return _without_empty_columns(Table(columns, tuple(rows)))


def settings_table(runs: Sequence[Run]) -> Table:
    """One row per setting in which arms differ, one column per arm."""
    found = settings_that_differ(runs)
    arms = list(dict.fromkeys(run.arm for run in runs if run.settings))
    rows = tuple((key, *(values[arm] for arm in arms)) for key, values in found.items())
    return Table(("setting", *arms), rows)


def markdown(table: Table) -> str:
    """A pipe table; what would end a cell or begin a tag is escaped."""
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    return "\n".join("| " + " | ".join(map(plain, line)) + " |" for line in lines)


def plain(text: str) -> str:
    """Text as it reads in markdown: on one line, no tags, no cell borders."""
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|")):
        text = text.replace(sign, written)
    return " ".join(text.split())


def number(value: float) -> str:
    """Three significant digits, or three decimals below 10; a dash for what is not there."""
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return "inf"
    return f"{value:.3f}" if 0.001 <= abs(value) < 10 or value == 0 else f"{value:.3g}"


def _count(arm: ArmSummary) -> str:
    return f"{arm.finished}{not_finished(arm)}"


def not_finished(arm: ArmSummary) -> str:
    """In brackets, how many runs the numbers leave out; nothing if there are none."""
    missing = arm.runs - arm.finished
    lost = arm.collapsed_unfinished
    told = f", {lost} of them collapsed" if lost else ""
    return f" (+{missing} not finished{told})" if missing else ""


def _interval(bounds: tuple[float, float] | None) -> str:
    if bounds is None:
        return NONE
    low, high = (min(1.0, max(0.0, bound)) for bound in bounds)
    return f"{low:.2f} to {high:.2f}"  # a dash would read as a minus


def _length(run: Run) -> int:
    return max(len(values) for values in run.series.values())


def _began(run: Run) -> str:
    verdict = run.verdict
    if verdict is None or not verdict.collapsed or verdict.began is None:
        return NONE
    return str(verdict.began)


def _signals(run: Run) -> Sequence[Signal]:
    return run.verdict.signals if run.verdict is not None else ()


def _without_empty_columns(table: Table) -> Table:
    kept = [
        index
        for index in range(len(table.columns))
        if index == 0 or any(row[index] != NONE for row in table.rows)
    ]

    def pick(row: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(row[index] for index in kept)

    return Table(pick(table.columns), tuple(map(pick, table.rows)))
