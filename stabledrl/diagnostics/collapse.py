"""The collapse detector: did a run collapse, when, and which signal moved first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stabledrl.diagnostics.alarms import ALARMS, logged, reward_collapse
from stabledrl.diagnostics.falls import falls


@dataclass(frozen=True)
class Signal:
    """One alarm. name: of the function in `alarms`. phase: index of the phase in which it began."""

    name: str
    phase: int


@dataclass(frozen=True)
class Verdict:
    """What a run's series say.

    collapsed: the 10-phase mean of train/solved (of train/reward if there is none) fell below half
    its running maximum and is not back above 60 % of it by the end. began: the phase in which that
    maximum last held before the fall. signals: every alarm once, in the order in which they moved.
    """

    collapsed: bool
    began: int | None
    signals: tuple[Signal, ...]

    @property
    def first_signal(self) -> str | None:
        """Name of the alarm that moved first."""
        return self.signals[0].name if self.signals else None


def detect(series: Mapping[str, Sequence[float]]) -> Verdict:
    """The verdict on series of one value per rollout phase; NaN: not logged in that phase.

    Names are those of docs/metrics.md; metrics that are missing raise no alarm.
    """
    solved = logged(series, "train/solved")
    judged = solved if len(solved.values) else logged(series, "train/reward")
    last = [fall for fall in falls(judged.values)[-1:] if fall.recovered is None]
    raised = [(alarm.__name__, alarm(series)) for alarm in ALARMS]
    signals = [Signal(name, phase) for name, phase in raised if phase is not None]
    return Verdict(
        collapsed=bool(last),
        began=int(judged.phases[last[0].held]) if last else None,
        signals=tuple(sorted(signals, key=lambda signal: signal.phase)),
    )


def fell_beyond_noise(verdict: Verdict) -> bool:
    """Whether the run has collapsed and noise of a low solve rate cannot be the reason."""
    alarms = {signal.name for signal in verdict.signals}
    return verdict.collapsed and reward_collapse.__name__ in alarms


def plain(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain values, for summary.json."""
    return {
        "collapsed": verdict.collapsed,
        "began": verdict.began,
        "first_signal": verdict.first_signal,
        "signals": [{"name": signal.name, "phase": signal.phase} for signal in verdict.signals],
    }


def phrase(verdict: Verdict) -> str:
    """The verdict in a few words."""
    first = ""
    if verdict.signals:
        first = f", first signal {verdict.first_signal} (phase {verdict.signals[0].phase})"
    return (f"began in phase {verdict.began}" if verdict.collapsed else "none") + first
