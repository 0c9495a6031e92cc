"""What watching a run costs: the monitor's share of training time, measured inside one run.

    python benchmarks/monitor.py [--phases 30] [--threads 1] [key=value …]

The main job on the shipped model, without validation. A clock around every function of `WATCHERS`
adds up the time spent in it; the share is that sum over the time of `Trainer.fit`. Not counted,
since it is small or would be there without a monitor: the largest weight and their sum (two
reductions in `Algorithm.loss`), checkpoints, the progress bar.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("STABLEDRL_ROOT", str(ROOT))

import lightning.pytorch as pl  # noqa: E402
import torch  # noqa: E402
from hydra import compose, initialize_config_dir  # noqa: E402

from stabledrl import algorithm  # noqa: E402
from stabledrl.config import register_resolvers  # noqa: E402
from stabledrl.jobs.train import train  # noqa: E402
from stabledrl.training import phases  # noqa: E402
from stabledrl.training.callbacks.completions import Completions  # noqa: E402
from stabledrl.training.callbacks.guard import Guard  # noqa: E402
from stabledrl.training.callbacks.stability import Stability  # noqa: E402
from stabledrl.training.module import ReinforcementModule  # noqa: E402

# (where it is looked up, name, what it is)
WATCHERS: tuple[tuple[Any, str, str], ...] = (
    (algorithm, "ratio_metrics", "ratios"),
    (algorithm, "weight_metrics", "clipped weights, ESS, bypass"),
    (algorithm.Algorithm, "_clamped", "clamped weights"),
    (phases, "rollout_metrics", "completions, entropy, token share"),
    (phases.PhaseCollector, "_drift", "drift from the reference"),
    (Guard, "on_before_optimizer_step", "guard, with the gradient's norm"),
    (ReinforcementModule, "on_before_optimizer_step", "spikes, merging, writing metrics.csv"),
    (Stability, "on_train_epoch_end", "collapse detector"),
    (Completions, "on_train_batch_start", "completions table"),
)


class Clock:
    """Adds up wall time by part (seconds); of nested calls only the outermost counts."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._running = False

    def around(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The same function, timed."""

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._running:
                return function(*arguments, **named)
            self._running = True
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[part] += time.perf_counter() - start
                self._running = False

        return timed


def measure(phase_count: int, overrides: list[str]) -> tuple[dict[str, float], float]:
    """Seconds by part of the monitor, and those of training, of one run."""
    monitor, training = Clock(), Clock()
    for owner, name, part in WATCHERS:
        setattr(owner, name, monitor.around(getattr(owner, name), part))
    setattr(pl.Trainer, "fit", training.around(pl.Trainer.fit, "fit"))  # noqa: B010
    register_resolvers()
    with tempfile.TemporaryDirectory() as directory:
        settings = [
            f"paths.run_dir={directory}",
            f"trainer.max_epochs={phase_count}",
            f"trainer.check_val_every_n_epoch={phase_count + 1}",
            "rollout.validation_prompts=16",
            "extras.print_config=false",
            "logger=csv",
            *overrides,
        ]
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            train(compose("config", settings))
    return dict(monitor.seconds), training.seconds["fit"]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--phases", type=int, default=30, help="rollout phases of the run")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("overrides", nargs="*", help="as for run.py: algorithm=grpo …")
    given = parser.parse_args()
    parts, training = measure(given.phases, [f"extras.threads={given.threads}", *given.overrides])
    for part, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"{part:<36} {seconds:8.3f} s  {seconds / training:7.2%}")
    total = sum(parts.values())
    print(
        f"monitor: {total / training:.2%} of training ({total:.2f} s of {training:.1f} s), "
        f"{given.phases} phases, {given.threads} thread(s), {platform.machine()} with "
        f"{os.cpu_count()} CPUs, torch {torch.__version__}, {datetime.date.today()}"
    )


if __name__ == "__main__":
    main()
