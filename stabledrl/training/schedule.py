"""Learning-rate schedules: factor of the base rate at an optimiser step."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge


def constant(step: int, total_steps: int, warmup_steps: Annotated[int, Ge(0)] = 0) -> float:
    """Linear warm-up over `warmup_steps`, then 1."""
    return min(1.0, (step + 1) / (warmup_steps + 1))


def linear(step: int, total_steps: int, warmup_steps: Annotated[int, Ge(0)] = 0) -> float:
    """Linear warm-up, times a straight line from 1 at the first step to 0 after the last."""
    return constant(step, total_steps, warmup_steps) * max(0.0, 1 - step / total_steps)
