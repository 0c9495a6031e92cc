"""Tables of a comparison: one row per arm, one row per run, and the settings that differ."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from stabledrl.diagnostics.arms import settings_that_differ
from stabledrl.diagnostics.collapse import Signal
from stabledrl.diagnostics.runs import Run
from stabledrl.functional.evaluation import wilson_interval

LAST = 10  # phases that a final training value is the mean of
NONE = "–"


@dataclass(frozen=True)
class Table:
    """Column heads and rows of text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of the values that are finite; nan where there is none."""

    mean: float
    std: float

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return NONE
        return f"{self.mean:.3f} ± {NONE if math.isnan(self.std) else format(self.std, '.3f')}"


@dataclass(frozen=True)
class ArmSummary:
    """An arm in numbers, over its finished runs.

    final_held_out, best_held_out: val/solved. final_training: train/solved, mean of the last
    10 phases. collapsed of judged runs, with the 95 % Wilson interval of their share.
    first_signal: the most common one among the collapsed. peak_gradient_*: over runs of the
    largest train/grad_norm. bypass_rate, ratio_noise: means over runs and phases.
    result: what the jobs returned (optimized_metric).
    """

    arm: str
    runs: int
    finished: int
    final_held_out: Spread
    best_held_out: Spread
    final_training: Spread
    result: Spread
    collapsed: int
    judged: int
    collapse_interval: tuple[float, float] | None
    first_signal: str | None
    peak_gradient_median: float
    peak_gradient_max: float
    bypass_rate: float
    ratio_noise: float


def spread(values: Iterable[float]) -> Spread:
    """Of the finite values; a single one has no standard deviation."""
    kept = [value for value in values if math.isfinite(value)]
    std = statistics.stdev(kept) if len(kept) > 1 else math.nan
    return Spread(statistics.fmean(kept) if kept else math.nan, std)


def summarize(runs: Iterable[Run]) -> list[ArmSummary]:
    """One summary per arm, of runs that are in the order of their arms."""
    return [_summary(arm, list(members)) for arm, members in groupby(runs, lambda run: run.arm)]


def _summary(arm: str, runs: Sequence[Run]) -> ArmSummary:
    finished = [run for run in runs if run.status == "finished"]
    verdicts = [run.verdict for run in finished if run.verdict is not None]
    collapsed = [verdict for verdict in verdicts if verdict.collapsed]
    signals = Counter(v.first_signal for v in collapsed if v.first_signal is not None)
    peaks = [value for run in finished if math.isfinite(value := peak_gradient(run))]
    share = len(collapsed) / len(verdicts) if verdicts else math.nan
    return ArmSummary(
        arm=arm,
        runs=len(runs),
        finished=len(finished),
        final_held_out=spread(map(final_held_out, finished)),
        best_held_out=spread(map(best_held_out, finished)),
        final_training=spread(map(final_training, finished)),
        result=spread(map(result, finished)),
        collapsed=len(collapsed),
        judged=len(verdicts),
        collapse_interval=wilson_interval(share, len(verdicts)) if verdicts else None,
        first_signal=signals.most_common(1)[0][0] if signals else None,
        peak_gradient_median=statistics.median(peaks) if peaks else math.nan,
        peak_gradient_max=max(peaks, default=math.nan),
        bypass_rate=spread(mean_of(run, "train/bypass_rate") for run in finished).mean,
        ratio_noise=spread(mean_of(run, "train/ratio/noise_std") for run in finished).mean,
    )


def final_held_out(run: Run) -> float:
    """val/solved of the last validation."""
    return run.validations[-1].solved if run.validations else math.nan


def best_held_out(run: Run) -> float:
    """The largest val/solved."""
    return max((validation.solved for validation in run.validations), default=math.nan)


def final_training(run: Run) -> float:
    """train/solved, mean of the last 10 phases."""
    return _mean(run.series.get("train/solved", np.empty(0))[-LAST:])


def peak_gradient(run: Run) -> float:
    """The largest finite train/grad_norm."""
    values = run.series.get("train/grad_norm", np.empty(0))
    return float(max(values[np.isfinite(values)], default=math.nan))


def result(run: Run) -> float:
    """What the job returned."""
    value = run.summary.get("optimized_metric")
    return float(value) if isinstance(value, int | float) else math.nan


def mean_of(run: Run, name: str) -> float:
    """Mean over the phases in which a metric was logged with a finite value."""
    return _mean(run.series.get(name, np.empty(0)))


def _mean(values: np.ndarray) -> float:
    kept = values[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else math.nan


# --- as text -----------------------------------------------------------------------------------


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
    """Three significant digits, or three decimals below 1."""
    if not math.isfinite(value):
        return NONE
    return f"{value:.3f}" if 0.001 <= abs(value) < 10 or value == 0 else f"{value:.3g}"


def _count(arm: ArmSummary) -> str:
    missing = arm.runs - arm.finished
    return f"{arm.finished} (+{missing} not finished)" if missing else str(arm.finished)


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
