"""Loggers of a run. They report; they never decide, ask or stop anything."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.pytorch.loggers import Logger, WandbLogger
from omegaconf import DictConfig, OmegaConf

from stabledrl.config import build
from stabledrl.errors import one_line
from stabledrl.training.processes import is_first

log = logging.getLogger(__name__)
SETTINGS = "settings/"  # under which a run of a W&B agent logs the groups that its sweep varies
SUMMARIES = {"val/solved": "max", "train/solved": "max", "train/grad_norm": "max"}


def build_loggers(cfg: DictConfig, directory: Path) -> list[Logger]:
    """The configured loggers that can start; one that cannot is left out with a warning.

    Of several processes the first one logs.
    """
    if not is_first():
        return []
    quieten_wandb(directory)
    loggers: list[Logger] = []
    for name, node in (cfg.logger or {}).items():
        if node is None:
            continue
        try:
            logger = build(node, **wandb_labels(node, directory))
            if isinstance(logger, WandbLogger):
                start_wandb(logger, cfg)
            loggers.append(logger)
        except Exception as error:  # whatever a logger dies of, the run goes on
            cause = error.__cause__ or error  # Hydra wraps what a constructor raises
            reason = one_line(cause)
            log.warning("logger %s is off: %s: %s", name, type(cause).__name__, reason)
    return loggers


def quieten_wandb(directory: Path) -> None:
    """No home directory, chatter, reports or long waits; what the user has set is left alone."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_DISABLE_CODE", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its own faults, sent to its makers
    os.environ.setdefault("WANDB_INIT_TIMEOUT", "20")  # seconds until an online run is given up
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        os.environ.setdefault(name, str(directory / "wandb"))


def wandb_labels(node: DictConfig, directory: Path) -> dict[str, str]:
    """Name, group and job type of a W&B run, where the configuration leaves them open."""
    target = str(node.get("_target_"))
    if not target.endswith(".WandbLogger"):
        return {}
    context = HydraConfig.get() if HydraConfig.initialized() else None
    choices = context.runtime.choices if context else {}
    parts = [choices[group] for group in ("algorithm", "task", "model") if group in choices]
    # the end of a directory tells runs apart: two levels in a multirun, three elsewhere
    depth = 2 if context and context.mode == RunMode.MULTIRUN else 3
    labels = {
        "name": "/".join(directory.parts[-depth:]),
        "group": choices.get("sweeps") or "-".join(parts) or directory.parent.name,
        "job_type": str(choices.get("job", "")),
    }
    return {key: value for key, value in labels.items() if value and node.get(key) is None}


def start_wandb(logger: WandbLogger, cfg: DictConfig) -> None:
    """Open the run with its configuration and choices."""
    import wandb

    # from here on it is silent, if it is to be
    wandb.setup(wandb.Settings(mode="offline") if logger._offline else None)
    if not logger._offline and not wandb.login(prompt=False, verify=False):
        raise RuntimeError("no API key: run `wandb login`, or leave logger.wandb.offline=true")
    run = logger.experiment
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    chosen = {f"choices/{group}": option for group, option in choices.items() if "/" not in group}
    run.config.update({**plain, **chosen}, allow_val_change=True)
    # a sweep's agent has set and locked what varies: where it chose an option, no settings stand
    held = {
        f"{SETTINGS}{group}": settings
        for group, settings in plain.items()
        if isinstance(settings, Mapping) and not isinstance(run.config.get(group), Mapping)
    }
    run.config.update(held, allow_val_change=True)
    for metric, summary in SUMMARIES.items():
        run.define_metric(metric, summary=summary)


def close_loggers() -> None:
    """Finish the W&B run if one is open, whatever happened."""
    if "wandb" in sys.modules:
        sys.modules["wandb"].finish()
