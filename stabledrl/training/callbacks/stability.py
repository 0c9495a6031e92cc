"""The collapse detector, live: warns when a signal moves and can end a run that has collapsed."""

from __future__ import annotations

import logging
import math
from typing import Any, Literal

import lightning.pytorch as pl

from stabledrl.diagnostics.alarms import WATCHED
from stabledrl.diagnostics.collapse import Verdict, detect, fell_beyond_noise
from stabledrl.diagnostics.series import summarized
from stabledrl.training.module import ReinforcementModule

log = logging.getLogger(__name__)


class Stability(pl.Callback):
    """Judges the run after every phase, and logs one warning per alarm when it is first raised.

    on_collapse: `warn` goes on, `stop` ends training after the phase in which the run is found
    collapsed; the best checkpoint is kept either way. A solve rate so low that noise alone halves
    its mean is no reason to stop.
    series: what has been logged, one value per phase and metric. verdict: of the phases so far.
    """

    def __init__(self, on_collapse: Literal["warn", "stop"] = "warn") -> None:
        self._on_collapse = on_collapse
        self.series: dict[str, list[float]] = {}
        self.verdict: Verdict = detect({})

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The phase is over; its checkpoint, written afterwards, holds what is remembered here."""
        if not isinstance(pl_module, ReinforcementModule):  # supervision has no rewards
            return
        phase = pl_module.phase
        self._remember(phase, pl_module)
        known, self.verdict = set(self.verdict.signals), detect(self.series)
        for signal in self.verdict.signals:
            if signal not in known:
                log.warning("phase %d: %s, since phase %d", phase, signal.name, signal.phase)
        if self._on_collapse == "stop" and fell_beyond_noise(self.verdict):
            log.warning(
                "training ends with phase %d: the solve rate collapsed, it last held in phase %d "
                "(callbacks.stability.on_collapse=stop)",
                phase,
                self.verdict.began,
            )
            trainer.should_stop = True

    def _remember(self, phase: int, module: ReinforcementModule) -> None:
        rows = [
            {name: float(row[name]) for name in WATCHED if name in row}
            for row in module.rows  # of this phase
        ]
        values = summarized(rows)
        for name in WATCHED:
            known = self.series.setdefault(name, [])[:phase]
            # phases before this callback was there have logged nothing
            missing = [math.nan] * (phase - len(known))
            self.series[name] = [*known, *missing, values.get(name, math.nan)]

    def state_dict(self) -> dict[str, Any]:
        """The series, for checkpoints; the verdict follows from them."""
        return {"series": {name: list(values) for name, values in self.series.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on watching; alarms raised before are not raised again."""
        self.series = {name: list(values) for name, values in state_dict["series"].items()}
        self.verdict = detect(self.series)
