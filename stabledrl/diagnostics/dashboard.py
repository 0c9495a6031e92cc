"""The collapse dashboard as plain data: which series stand beside each other, and in what order.

`stabledrl.jobs.workspace` makes a W&B workspace of it. Metrics are keys of docs/metrics.md; a test
refuses one that a run does not log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

# for pydantic, where a dashboard is read from a file: a mistyped key is refused, not passed over
STRICT = {"extra": "forbid"}


@dataclass(frozen=True)
class Panel:
    """A line plot of one or more series over optimiser steps."""

    __pydantic_config__: ClassVar = STRICT

    title: str
    metrics: tuple[str, ...]
    log_scale: bool = False


@dataclass(frozen=True)
class Section:
    """Panels under one heading, `columns` of them beside each other."""

    __pydantic_config__: ClassVar = STRICT

    name: str
    panels: tuple[Panel, ...]
    columns: int = 4
    is_open: bool = False


def train(title: str, *keys: str, log_scale: bool = False) -> Panel:
    """A panel of `train/` series."""
    return Panel(title, tuple(f"train/{key}" for key in keys), log_scale)


# Left to right: what is lost, the spike that loses it, and the signals that move before either.
FIRST_ROW = Section(
    "Collapse at a glance",
    (
        train("reward", "reward"),
        train("gradient norm (log)", "grad_norm", log_scale=True),
        train("largest log-ratio", "ratio/log_max"),
        train("effective sample size", "ess"),
        train("bypass rate", "bypass_rate"),
        train("drift from the rollout policy", "drift/old"),
    ),
    columns=6,
    is_open=True,
)

# The groups of docs/metrics.md.
GROUPS = (
    Section(
        "Reward",
        (
            Panel("held-out solve rate (greedy)", ("val/solved",)),
            Panel("held-out reward (greedy)", ("val/reward",)),
            train("solve rate (sampled)", "solved"),
            train("reward, deviation within groups", "reward_std"),
            train("groups without a gradient", "frac_zero_std"),
            train("groups that were filtered", "frac_filtered"),
            train("completions without a verdict", "frac_no_verdict"),
        ),
        is_open=True,
    ),
    Section(
        "Update",
        (
            train("loss", "loss"),
            train("KL term", "kl"),
            train("gradient norm over its median (log)", "grad_spike", log_scale=True),
            train("entropy", "entropy"),
            train("learning rate", "learning_rate"),
        ),
    ),
    Section(
        "Ratios and weights",
        (
            train("noise at θ = θ_old", "ratio/noise_std"),
            train("log-ratio, standard deviation", "ratio/log_std"),
            train("ratio, mean (log)", "ratio/mean", log_scale=True),
            train("ratio, largest (log)", "ratio/max", log_scale=True),
            train("largest weight", "weights/max"),
            train("sum of weights", "weights/sum"),
            train("clipped, below and above 1", "clip_ratio/low_mean", "clip_ratio/high_mean"),
            train("clipped, both", "clip_ratio/region_mean"),
            train("drift from the reference", "drift/reference"),
        ),
    ),
    Section(
        "Completions",
        (
            train(
                "length: mean, least, largest",
                "completions/mean_length",
                "completions/min_length",
                "completions/max_length",
            ),
            train("prompts left out", "dropped_prompts"),
            train("truncated", "completions/frac_truncated"),
            train("empty", "completions/frac_empty"),
            train("distinct", "completions/distinct"),
            train("share of the commonest token", "completions/top_token_share"),
            Panel("tokens per forward pass", ("sampler/tokens_per_forward",)),
        ),
    ),
    Section(
        "Guard and time",
        (
            Panel("updates skipped as not finite", ("guard/nonfinite_updates",)),
            Panel("clamped ratios", ("guard/clamped_ratios",)),
            Panel(
                "seconds: sampling, grading, update",
                ("time/rollout_s", "time/reward_s", "time/update_s"),
            ),
            Panel("tokens per second", ("perf/tokens_per_s",)),
            Panel("phase", ("phase",)),
        ),
    ),
)


@dataclass(frozen=True)
class Dashboard:
    """Everything a workspace is built from.

    entity: account or team, None for one's own. arms: configuration keys whose values tell the arms
    apart, so that the seeds of an arm become one line. sweep: only the runs of that W&B group, None
    for all. step_metric: the horizontal axis; Lightning's logger counts optimiser steps under it.
    """

    __pydantic_config__: ClassVar = STRICT

    entity: str | None
    project: str
    name: str
    arms: tuple[str, ...]
    sweep: str | None = None
    step_metric: str = "trainer/global_step"
    sections: tuple[Section, ...] = (FIRST_ROW, *GROUPS)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every series of every panel."""
        return tuple(
            metric
            for section in self.sections
            for panel in section.panels
            for metric in panel.metrics
        )
