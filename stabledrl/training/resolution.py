"""Steps too small for the precision of the weights."""

from __future__ import annotations

import logging

import torch
from torch.optim import Optimizer

from stabledrl.training import processes

log = logging.getLogger(__name__)


@torch.no_grad()
def lost_steps(optimizer: Optimizer) -> float:
    """Share of the trained weights that a step of the learning rate leaves where they are.

    Formula: mean of 1[w + lr = w], in the precision of w. Adam's first steps are of the size of the
    rate, whatever the gradient.
    """
    lost, total = 0, 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            weight = processes.local(parameter)
            lost += int((weight + group["lr"] == weight).sum())
            total += weight.numel()
    return lost / max(1, total)


def warn_of_lost_steps(optimizer: Optimizer) -> None:
    """Say so where most steps are lost, as those of 1e-6 in bfloat16 are."""
    share = lost_steps(optimizer)
    if share > 0.5:
        log.warning(
            "optimizer.lr=%g is lost on %.0f %% of the weights: their precision has no number so "
            "near; raise it, or take model.dtype=float32 trainer.precision=bf16-mixed",
            optimizer.param_groups[0]["lr"],
            100 * share,
        )
