"""Sampled completions: to a file per phase, and a few of them to the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import lightning.pytorch as pl
from annotated_types import Ge, Gt
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stabledrl.rollout import Rollout, records, write_completions
from stabledrl.training.module import ReinforcementModule


class Completions(pl.Callback):
    """Writes `completions/phase_00012.jsonl` and prints a table, every n-th phase.

    directory: of the run. every: phases between two files. shown: rows of the printed table.
    """

    def __init__(
        self, directory: str, every: Annotated[int, Gt(0)] = 20, shown: Annotated[int, Ge(0)] = 4
    ) -> None:
        self._directory = Path(directory, "completions")
        self._every = every
        self._shown = shown

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """At the first batch of a phase."""
        if not isinstance(pl_module, ReinforcementModule):  # supervision samples nothing
            return
        phase = pl_module.phase
        if batch_idx or phase % self._every or not trainer.is_global_zero:
            return
        assert pl_module.last_phase is not None
        rollout = pl_module.last_phase.rollout
        self._directory.mkdir(parents=True, exist_ok=True)
        write_completions(self._directory / f"phase_{phase:05d}.jsonl", rollout)
        if self._shown:
            Console().print(table(rollout, phase, self._shown))


def table(rollout: Rollout, phase: int, rows: int) -> Table:
    """The first completion of the first prompts."""
    picture = Table(title=f"phase {phase}: sampled completions", title_justify="left")
    for title in ("prompt", "completion", "reward", "solved"):
        picture.add_column(title, overflow="fold", justify="right" if title == "reward" else "left")
    for record in records(rollout)[:: rollout.group_size][:rows]:
        reward = record["reward"]
        cells = (
            record["prompt"],
            record["completion"],
            "none" if reward is None else f"{reward:.2f}",
            "yes" if record["solved"] else "",
        )
        picture.add_row(*(Text(str(cell)) for cell in cells))  # Text: brackets are no markup
    return picture
