"""The panels of a report: which metrics are drawn, in this order, and how."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """A metric as it is drawn. file: stem of the png.

    The bold line of an arm is the mean over its seeds of their running means over 10 phases, except
    for what is measured in few phases. smooth: the thin lines are running means too.
    """

    file: str
    metric: str
    title: str
    unit: str
    caption: str
    logarithmic: bool = False
    smooth: bool = False
    sparse: bool = False


PANELS = (
    Panel(
        "reward",
        "train/reward",
        "Reward",
        "reward",
        "Mean reward of the training completions, mean of 10 phases.",
        smooth=True,
    ),
    Panel(
        "solved_training",
        "train/solved",
        "Training solve rate",
        "share of completions",
        "Share of the training completions that solve the task, mean of 10 phases. "
        "A collapse is judged on this curve.",
        smooth=True,
    ),
    Panel(
        "solved_held_out",
        "val/solved",
        "Held-out solve rate",
        "share of prompts",
        "Greedy solve rate (pass@1) on held-out prompts.",
        sparse=True,
    ),
    Panel(
        "gradient_norm",
        "train/grad_norm",
        "Gradient norm",
        "largest of the phase, log axis",
        "Largest gradient norm of the phase before clipping; the bold line is a geometric mean.",
        logarithmic=True,
    ),
    Panel(
        "ratio_log_max",
        "train/ratio/log_max",
        "Largest log-ratio",
        "nats",
        "Largest log importance ratio of the phase, unclamped.",
    ),
    Panel(
        "noise_std",
        "train/ratio/noise_std",
        "Noise of the log-ratio",
        "nats",
        "Standard deviation of log-ratios at a phase's first update, where no weight has moved: "
        "noise of the estimator alone.",
    ),
    Panel(
        "ess",
        "train/ess",
        "Effective sample size",
        "share of the group",
        "Effective sample size of a group's clipped weights; 1/G means that one sample decides.",
    ),
    Panel(
        "bypass_rate",
        "train/bypass_rate",
        "Bypass rate",
        "share of samples",
        "Samples with a negative advantage and a ratio above 1.2, which conditional clipping lets "
        "through unbounded.",
    ),
    Panel(
        "drift_old",
        "train/drift/old",
        "Drift from the old policy",
        "nats",
        "How far the policy has moved from the one that sampled the phase.",
    ),
)
