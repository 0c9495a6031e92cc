"""Synthetic runs: a healthy one with heavy-tailed noise, and changes of single metrics."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Streams = dict[str, NDArray[np.float64]]


def healthy(phases: int = 500, seed: int = 0) -> Streams:
    """What a run of the tiny Sudoku model logs, its noise made heavier: Student's t, log-normal.

    The reward rises, KL and length grow slowly, gradients vary by a factor of two and more.
    """
    generator = np.random.default_rng(seed)
    time = np.arange(phases) / 500

    def normal(deviation: float) -> NDArray[np.float64]:
        return deviation * generator.standard_t(3, phases)

    def factor(deviation: float) -> NDArray[np.float64]:
        return np.exp(deviation * generator.standard_normal(phases))

    length = 40 * (1 + 0.5 * time) * factor(0.1)
    return {
        "train/solved": np.clip(0.4 + 0.3 * time + normal(0.06), 0, 1),
        "train/reward": 1.2 + 0.3 * time + normal(0.1),
        "train/reward_std": 0.1 * factor(0.4),
        "train/kl": (0.02 + 0.1 * time) * factor(0.4),
        "train/grad_norm": 0.3 * factor(0.6),
        "train/ratio/noise_std": 0.3 * factor(0.3),
        "train/drift/old": np.abs(0.01 + normal(0.01)),
        "train/ess": 1 - np.minimum(0.9, 0.05 * factor(0.5)),
        "train/completions/mean_length": length,
        "train/completions/max_length": np.minimum(128.0, np.round(length * 2 * factor(0.1))),
        "train/completions/top_token_share": np.clip(0.15 * factor(0.2), 0, 1),
    }


def changed(streams: Streams, name: str, start: int, goal: float, over: int = 10) -> Streams:
    """The metric moves in a straight line from phase `start` on."""
    values = streams[name].copy()
    share = np.clip((np.arange(len(values)) - start + 1) / over, 0, 1)
    moved = (1 - share) * values + share * goal
    return {**streams, name: np.where(np.arange(len(values)) < start, values, moved)}
