"""The guard against non-finite numbers: such an update is skipped and counted."""

from __future__ import annotations

import logging

import lightning.pytorch as pl
import torch
from torch.optim import Optimizer

from stabledrl.training import processes
from stabledrl.training.module import PolicyModule

log = logging.getLogger(__name__)


class Guard(pl.Callback):
    """Skips an optimiser step whose gradient has no finite norm: weights and moments stay bitwise.

    Logs `guard/nonfinite_updates`, the number skipped so far, and names what broke first.
    """

    def __init__(self) -> None:
        self.skipped = 0

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Before clipping: without gradients an optimiser changes nothing."""
        assert isinstance(pl_module, PolicyModule)
        if not torch.isfinite(pl_module.gradient_norm()):
            self.skipped += 1
            broken = broken_first(pl_module)
            log.warning("update %d skipped: the %s is not finite", trainer.global_step, broken)
            optimizer.zero_grad()
        pl_module.observed["guard/nonfinite_updates"] = torch.tensor(float(self.skipped))

    def state_dict(self) -> dict[str, int]:
        """The count, for checkpoints."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on counting."""
        self.skipped = state_dict["skipped"]


def broken_first(module: PolicyModule) -> str:
    """Name of the first quantity of an update that is not finite, in the order of computation.

    That is one of the module's `computed`, or else the gradient of a parameter, beginning at the
    output as backpropagation does, or else their norm: finite numbers too large to be squared. Of
    several processes the first on any of them; all have to ask.
    """
    gradients = [
        (f"gradient of {name}", parameter.grad)
        for name, parameter in reversed(list(module.named_parameters()))
        if parameter.grad is not None
    ]
    quantities = [*module.computed, *gradients]
    broken = [not torch.isfinite(processes.local(value)).all() for _, value in quantities]
    first = torch.tensor([(*broken, True).index(True)])
    place = int(torch.cat(processes.gather(first)).min())
    return (*(name for name, _ in quantities), "norm of the gradient")[place]
