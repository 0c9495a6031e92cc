"""Gradient spikes: the norm of an update against those just before."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

WINDOW = 50  # updates that a norm is compared with


class Spikes:
    """Gradient norm over the median of the up to 50 finite norms before it.

    1 where there is nothing to compare with: at the first update, and after gradients of 0 only.
    norms: those of the window, oldest first; they belong into checkpoints.
    """

    def __init__(self, norms: Iterable[float] = ()) -> None:
        self.norms = list(norms)

    def __call__(self, norm: float) -> float:
        """The ratio of this norm, which then joins the window."""
        usual = statistics.median(self.norms) if self.norms else 0.0
        if math.isfinite(norm):
            self.norms = [*self.norms, norm][-WINDOW:]
        return norm / usual if usual > 0 else 1.0
