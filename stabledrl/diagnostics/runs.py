"""A run as it lies on disk: its series, validations, summary and settings."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from stabledrl.diagnostics.collapse import Verdict, detect
from stabledrl.diagnostics.series import Row, phase_series, read_rows

MARKS = ("config.yaml", "metrics.csv", "summary.json")  # one of them makes a folder a run

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C, ten times as fast

log = logging.getLogger(__name__)


class Validation(NamedTuple):
    """A validation: optimiser steps and phases before it, greedy solve rate."""

    step: int
    phase: int
    solved: float


@dataclass(frozen=True)
class Run:
    """What a run left.

    status: finished, failed, or unfinished where there is no summary: running, or killed.
    series: one value per phase and metric, indexed by phase, nan where it was not logged.
    settings: dotted key -> value of the resolved configuration, places and seed left out.
    choices: option by group, as Hydra recorded them. overrides: of the command, seed left out.
    arm: label among the runs it is compared with (`stabledrl.diagnostics.arms`).
    """

    directory: Path
    status: str = "unfinished"
    arm: str = ""
    seed: int | None = None
    series: Mapping[str, np.ndarray] = field(default_factory=dict)
    validations: tuple[Validation, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()

    @cached_property
    def verdict(self) -> Verdict | None:
        """Whether training collapsed; None where no training solve rate was logged."""
        if not self.phases("train/solved"):
            return None
        return detect({name: values.tolist() for name, values in self.series.items()})

    @property
    def error(self) -> str:
        """What made it fail, on one line."""
        return " ".join(str(self.summary.get("error") or "").split())

    def phases(self, name: str) -> int:
        """Number of phases in which a metric was logged with a finite value."""
        return int(np.isfinite(self.series.get(name, np.empty(0))).sum())


def is_run(directory: Path) -> bool:
    """Whether a folder holds what a run leaves."""
    return any((directory / name).is_file() for name in MARKS)


def read_run(path: Path | str) -> Run:
    """Read a run directory; what is missing or cut short is left out, nothing is raised for it.

    Raises FileNotFoundError if the folder holds nothing that a run leaves.
    """
    directory = Path(path)
    if not is_run(directory):
        raise FileNotFoundError(f"{directory}: no run, none of {', '.join(MARKS)} is there")
    config = _mapping(_yaml(directory / "config.yaml"))
    hydra = _mapping(_yaml(directory / ".hydra" / "hydra.yaml")).get("hydra")
    runtime = _mapping(_mapping(hydra).get("runtime"))
    summary = _summary(directory / "summary.json")
    overrides = _yaml(directory / ".hydra" / "overrides.yaml")
    overrides = [str(item) for item in overrides] if isinstance(overrides, list) else []
    rows = _rows(directory / "metrics.csv")
    return Run(
        directory=directory,
        status=str(summary.get("status", "unfinished")),
        seed=_seed(config, summary, overrides),
        series=phase_series(rows),
        validations=tuple(_validations(rows)),
        summary=summary,
        settings=_settings(config, runtime),
        choices={str(k): _option(v) for k, v in _mapping(runtime.get("choices")).items()},
        overrides=tuple(item for item in overrides if not item.startswith("seed=")),
    )


def _option(chosen: Any) -> str:
    return "null" if chosen is None else str(chosen)


def _rows(path: Path) -> list[dict[str, float]]:
    """Rows of metrics.csv; none, and a warning, if it cannot be read: one run of many."""
    if not path.is_file():
        return []
    try:
        return read_rows(path)
    except (OSError, ValueError) as error:
        log.warning("left out of the report: %s", error)
        return []


def _validations(rows: Sequence[Row]) -> Iterator[Validation]:
    """The validations in order; a repeated one, of a run gone on with, counts once."""
    begun = [(row["step"], row["phase"]) for row in rows if "phase" in row and "step" in row]
    found: dict[int, Validation] = {}
    for row in rows:
        if math.isfinite(row.get("val/solved", math.nan)) and "step" in row:
            before = {phase for step, phase in begun if step < row["step"]}
            first = min((phase for _, phase in begun), default=0)
            step = int(row["step"])
            found[step] = Validation(step, int(first) + len(before), row["val/solved"])
    yield from (found[step] for step in sorted(found))


# What does not make another arm: where results go, how they look, and what a run returns.
IMMATERIAL = frozenset(
    {"hydra", "paths", "extras", "logger", "tags", "name", "seed", "optimized_metric"}
)


def _settings(config: Mapping[str, Any], runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys, alike wherever run and clone lie: texts do not begin with either folder.

    The same as `stabledrl.fingerprint` counts, but for seed and metric.
    """
    places = [_mapping(config.get("paths")).get("run_dir"), *_clones(runtime)]
    kept = {key: value for key, value in config.items() if key not in IMMATERIAL}
    if kept.get("ckpt_path") in (None, "last"):  # from scratch, or the same run gone on with
        kept.pop("ckpt_path", None)
    return {key: _placeless(value, places) for key, value in _flat(kept) if key}


def _clones(runtime: Mapping[str, Any]) -> Iterator[str]:
    """The folder of the conf/ that a run was composed from, as Hydra recorded it."""
    sources = runtime.get("config_sources")
    for source in map(_mapping, sources if isinstance(sources, list) else []):
        if source.get("provider") == "main" and source.get("schema") == "file":
            yield str(Path(str(source.get("path"))).parent)


def _placeless(value: Any, places: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_placeless(item, places) for item in value]
    if not isinstance(value, str):
        return value
    inside = (place for place in places if place and f"{value}/".startswith(f"{place}/"))
    return value.removeprefix(next(inside, ""))


def _flat(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _flat(value, f"{path}.{key}".lstrip("."))
    else:
        yield path, node


def _seed(
    config: Mapping[str, Any], summary: Mapping[str, Any], overrides: list[str]
) -> int | None:
    """The seed, from wherever it is recorded."""
    written = [item.removeprefix("seed=") for item in overrides if item.startswith("seed=")]
    for value in (config.get("seed"), summary.get("seed"), *written):
        if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
            return int(value)
    return None


def _summary(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(), LOADER)
    except (OSError, ValueError, yaml.YAMLError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
