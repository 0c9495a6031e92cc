"""job=dashboard: the collapse dashboard in W&B, or as a file until there is a server."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Len
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from pydantic import TypeAdapter, ValidationError

from stabledrl.declarations import declares
from stabledrl.diagnostics.dashboard import Dashboard
from stabledrl.errors import ConfigurationError, UserError, did_you_mean, one_line
from stabledrl.jobs.loggers import SETTINGS, quieten_wandb
from stabledrl.jobs.record import Record

log = logging.getLogger(__name__)
CHOICES = "choices/"  # under which a run logs the options of its groups


class Offline(Exception):
    """Why the workspace cannot be saved now, in words."""


@declares(trains_on=None, loads_model=False)
def dashboard(
    cfg: DictConfig,
    entity: Annotated[str, Len(1)] | None,
    project: Annotated[str, Len(1)],
    name: Annotated[str, Len(1)],
    arms: list[str],
    sweep: Annotated[str, Len(1)] | None,
    specification: str | None,
    offline: bool,
) -> None:
    """Write dashboard.json, and save the workspace where there is a server."""
    if specification is None:
        _refuse_unknown(cfg, arms)
        described = Dashboard(entity, project, name, tuple(arms), sweep)
    else:
        described = read(Path(specification))
        described = replace(described, entity=entity or described.entity)
    record = Record(cfg)
    path = record.directory / "dashboard.json"
    path.write_text(json.dumps(asdict(described), indent=2, ensure_ascii=False) + "\n")
    try:
        rows = [("workspace", upload(described, offline, record.directory))]
    except Offline as reason:
        later = f"python run.py job=dashboard job.specification={path}"
        log.warning("written to %s, not to W&B: %s; later: %s", path, reason, later)
        rows = [("not on W&B", str(reason))]
    counts = {"sections": len(described.sections), "metrics": len(described.metrics)}
    record.finish(counts, None, rows=[*rows, ("specification", str(path))])


def read(path: Path) -> Dashboard:
    """The dashboard that a job wrote into a file; UserError says what is wrong with the file."""
    try:
        return TypeAdapter(Dashboard).validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"job.specification={path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"job.specification={path}: {where}: {first['msg']}") from error


def upload(described: Dashboard, offline: bool, directory: Path) -> str:
    """Save the workspace; its address. Offline where that is not possible."""
    if offline:
        raise Offline("job.offline=true")
    if os.environ.get("WANDB_MODE", "online") not in ("online", "shared"):
        raise Offline(f"WANDB_MODE={os.environ['WANDB_MODE']}")
    quieten_wandb(directory)
    try:
        from stabledrl.jobs import workspace
    except ImportError as error:
        raise Offline("needs wandb-workspaces: pip install wandb-workspaces") from error
    import wandb

    try:
        if not wandb.login(prompt=False, verify=False):
            raise Offline("no API key: run `wandb login`")
        return workspace.save(described)
    except Offline:
        raise
    except Exception as error:  # whatever the server or the network says, the file is there
        raise Offline(f"{type(error).__name__}: {one_line(error)}") from error


def _refuse_unknown(cfg: DictConfig, arms: list[str]) -> None:
    """ConfigurationError for keys that no run logs a single value of."""
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    options = {f"{CHOICES}{group}" for group in choices if "/" not in group}
    values = set(_paths(OmegaConf.to_container(cfg, resolve=True)))
    values |= {f"{SETTINGS}{path}" for path in values if "." in path}
    faults = [
        f"job.arms: {key} is no single value that runs log{did_you_mean(key, options | values)}"
        for key in arms
        if key not in options | values
    ]
    if faults:
        raise ConfigurationError(faults)


def _paths(node: object, parents: str = "") -> Iterator[str]:
    """Dotted paths of the values in nested dicts."""
    if not isinstance(node, dict):
        yield parents.removesuffix(".")
        return
    for key, value in node.items():
        yield from _paths(value, f"{parents}{key}.")
