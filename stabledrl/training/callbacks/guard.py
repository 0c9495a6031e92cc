"""The guard against non-finite numbers: such an update is skipped and counted."""

from __future__ import annotations

import logging

import lightning.pytorch as pl
import torch
from torch.optim import Optimizer

log = logging.getLogger(__name__)


class Guard(pl.Callback):
    """Skips an optimiser step whose gradient is not finite: weights and moments stay bitwise.

    Logs `guard/nonfinite_updates`, the number skipped so far, and names what broke first: one of
    the module's `computed` quantities, or else the gradient of a parameter.
    """

    def __init__(self) -> None:
        self.skipped = 0

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Before clipping: without gradients an optimiser changes nothing."""
        broken = [
            name
            for name, parameter in pl_module.named_parameters()
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all()
        ]
        if broken:
            self.skipped += 1
            computed = getattr(pl_module, "computed", [])
            first = [name for name, value in computed if not torch.isfinite(value).all()]
            log.warning(
                "update %d skipped: the %s is not finite",
                trainer.global_step,
                first[0] if first else f"gradient of {broken[0]}",
            )
            for parameter in pl_module.parameters():
                parameter.grad = None
        pl_module.log("guard/nonfinite_updates", float(self.skipped), on_step=True)

    def state_dict(self) -> dict[str, int]:
        """The count, for checkpoints."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on counting."""
        self.skipped = state_dict["skipped"]
