"""Progress in the terminal: one bar per phase with reward and solve rate."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import RichProgressBar


class Progress(RichProgressBar):
    """Lightning's rich bar without the logger's version number."""

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """What stands behind the bar."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        names = ("train/reward", "train/solved", "train/grad_norm", "val/solved")
        known = trainer.callback_metrics
        return {**metrics, **{name: float(known[name]) for name in names if name in known}}
