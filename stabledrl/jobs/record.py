"""What every job leaves behind: config.yaml at the start, summary.json at the end."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from stabledrl.config import print_config
from stabledrl.fingerprint import resolved_hash
from stabledrl.training.processes import is_first

Thing = TypeVar("Thing")

PACKAGES = ("torch", "lightning", "transformers", "hydra-core", "omegaconf", "wandb")

THIRD_PARTY_WARNINGS = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # lightning 2.6 with torch 2.13
    r"Your `IterableDataset` has `__len__` defined",  # on purpose: no fetching ahead
    r"The '\w+_dataloader' does not have many workers",  # a phase is collected by the policy itself
    r"It is recommended to use `self.log\(.*sync_dist=True",  # every process has the whole value
    r"Checkpoint directory .* exists and is not empty",  # a resumed run goes on where it was
    # with ckpt_path=<file of another run> the best checkpoint is looked for anew, as it should be
    r"The dirpath has changed from",
    r"Be aware that when using `ckpt_path`, callbacks used to create the checkpoint",
)


class Record:
    """A job's run directory. Opens it, keeps the time, closes it with summary.json.

    Of several processes the first one writes and talks.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.directory = Path(cfg.paths.run_dir)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._hash = resolved_hash(cfg)
        self._start = time.perf_counter()
        self._seed = int(cfg.seed)
        self._used: list[Any] = []
        if cfg.extras.threads is not None:
            torch.set_num_threads(cfg.extras.threads)
        quieten_libraries()
        if not is_first():
            return
        if cfg.extras.print_config:
            print_config(cfg)
        (self.directory / "summary.json").unlink(missing_ok=True)  # of a run that is gone on with
        unfinished = self.directory / "config.yaml.part"
        unfinished.write_text(OmegaConf.to_yaml(cfg, resolve=True))
        unfinished.replace(self.directory / "config.yaml")  # a kill leaves a whole one

    def using(self, thing: Thing) -> Thing:
        """The same, closed (if it can be) when the job finishes: processes of a task, …

        Processes end with the one that started them too, so a job that fails leaves none either.
        """
        self._used.append(thing)
        return thing

    def finish(
        self,
        metrics: Mapping[str, Any],
        optimized_metric: float | None,
        seconds: Mapping[str, float] | None = None,
        rows: Iterable[tuple[str, str]] = (),
        findings: Mapping[str, Any] | None = None,
    ) -> None:
        """Write summary.json and print a panel: metrics, wall time, where everything lies.

        findings: what else stands at the top of summary.json. rows: what else stands in the panel.
        """
        for thing in self._used:
            release(thing)
        if not is_first():
            return
        total = time.perf_counter() - self._start
        summary = {
            "status": "finished",
            "optimized_metric": optimized_metric,
            "metrics": dict(metrics),
            **(findings or {}),
            "seconds": {**(seconds or {}), "total": total},
            "seed": self._seed,
            "config_hash": self._hash,
            "threads": torch.get_num_threads(),
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
            "versions": {"python": platform.python_version()}
            | {package: version(package) for package in PACKAGES if _installed(package)},
            "git_commit": git_commit(),
        }
        text = json.dumps(finite(summary), indent=2)
        (self.directory / "summary.json").write_text(text + "\n")
        lines = [
            *rows,
            ("wall time", f"{total:.0f} s"),
            ("everything", f"{self.directory}"),
        ]
        width = max(len(name) for name, _ in lines)
        body = "\n".join(f"[bold]{name:<{width}}[/]  {escape(value)}" for name, value in lines)
        Console().print(Panel(body, title="results", expand=False))


def release(thing: object) -> None:
    """Close what can be closed."""
    close = getattr(thing, "close", None)
    if close is not None:
        close()


def quieten_libraries() -> None:
    """Only what concerns the user reaches the terminal: our log, progress, tables, panels."""
    for name in ("lightning.pytorch", "lightning.fabric"):  # they have handlers of their own
        logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger(name).handlers.clear()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # weights that do not fit are ours to report
    for message in THIRD_PARTY_WARNINGS:
        warnings.filterwarnings("ignore", message=message)


def git_commit() -> str | None:
    """Commit of the source tree, with a + if it has changes; None outside a checkout."""
    root = os.environ.get("STABLEDRL_ROOT", ".")
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: str, *arguments: str) -> str:
    command = ["git", "-C", root, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _installed(package: str) -> bool:
    try:
        version(package)
    except ImportError:
        return False
    return True


def finite(value: Any) -> Any:
    """JSON has no NaN: null instead, at any depth of dicts and lists."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
