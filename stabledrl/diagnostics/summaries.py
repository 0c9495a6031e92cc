"""Numbers of a run, and of an arm over its finished runs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from stabledrl.diagnostics.runs import Run
from stabledrl.functional.evaluation import wilson_interval

LAST = 10  # phases that a final training value is the mean of
NONE = "–"


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
    result: what the jobs returned (optimized_metric). collapsed_unfinished: of the others, those
    that had collapsed by their log.
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
    collapsed_unfinished: int = 0


def spread(values: Iterable[float]) -> Spread:
    """Of the finite values; a single one has no standard deviation."""
    kept = [value for value in values if math.isfinite(value)]
    std = statistics.stdev(kept) if len(kept) > 1 else math.nan
    return Spread(statistics.fmean(kept) if kept else math.nan, std)


def summarize(runs: Iterable[Run]) -> list[ArmSummary]:
    """One summary per arm, of runs that are in the order of their arms."""
    return [_summary(arm, list(members)) for arm, members in groupby(runs, lambda run: run.arm)]


def ranked(summaries: Iterable[ArmSummary]) -> list[ArmSummary]:
    """Best final held-out solve rate first, arms without one last; equals stay in order."""
    return sorted(
        summaries,
        key=lambda arm: (
            math.inf if math.isnan(arm.final_held_out.mean) else -arm.final_held_out.mean
        ),
    )


def _summary(arm: str, runs: Sequence[Run]) -> ArmSummary:
    finished = [run for run in runs if run.status == "finished"]
    verdicts = [run.verdict for run in finished if run.verdict is not None]
    collapsed = [verdict for verdict in verdicts if verdict.collapsed]
    signals = Counter(v.first_signal for v in collapsed if v.first_signal is not None)
    peaks = [value for run in finished if not math.isnan(value := peak_gradient(run))]
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
        collapsed_unfinished=sum(
            run.status != "finished" and run.verdict is not None and run.verdict.collapsed
            for run in runs
        ),
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
    """The largest train/grad_norm; inf where one overflowed."""
    values = run.series.get("train/grad_norm", np.empty(0))
    return float(max(values[~np.isnan(values)], default=math.nan))


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
