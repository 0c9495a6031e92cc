"""Parameters that the loss does not reach."""

from __future__ import annotations

import logging

import lightning.pytorch as pl
from torch.optim import Optimizer

log = logging.getLogger(__name__)

NAMED = 3  # parameters in the warning


class MissingGradients(pl.Callback):
    """Warns once of trainable parameters that no batch of the first update gave a gradient.

    No gradient is none at all: the parameter took no part in the loss. One that is zero is no sign
    of anything: A of an adapter has it while B is 0, and all have it where all advantages are 0.
    """

    def __init__(self) -> None:
        self._reached: set[str] = set()
        self._told = False

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember what this batch reached; looked at now, since the guard may drop gradients."""
        if not self._told:
            named = pl_module.named_parameters()
            self._reached |= {name for name, parameter in named if parameter.grad is not None}

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """The first update is complete."""
        if self._told:
            return
        self._told = True
        trained = [n for n, parameter in pl_module.named_parameters() if parameter.requires_grad]
        missing = [name for name in trained if name not in self._reached]
        if missing and trainer.is_global_zero:
            more = ", …" if len(missing) > NAMED else ""
            log.warning(
                "%d of %d trainable parameters have no gradient in the first update and stay as "
                "they are: %s%s",
                len(missing),
                len(trained),
                ", ".join(missing[:NAMED]),
                more,
            )
