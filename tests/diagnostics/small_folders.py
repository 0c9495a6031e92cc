"""Run folders written by hand: what a run leaves, as small as a test wants it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

HEAD = "step,phase,train/loss,train/solved,train/grad_norm,val/solved\n"


def run_folder(
    directory: Path,
    seed: int = 0,
    solved: Sequence[float] = (0.5, 0.75),
    settings: Mapping[str, object] | None = None,
    summary: Mapping[str, object] | None = None,
    choices: Mapping[str, str | None] | None = None,
    validations: bool = True,
    held_out: float = 0.5,
) -> Path:
    """A run of one update per phase; val/solved is 0.25 at the start and `held_out` at the end.

    summary: None leaves a finished one. choices: None leaves none.
    """
    (directory / ".hydra").mkdir(parents=True)
    plain = {"seed": seed, "paths": {"run_dir": str(directory)}, **(settings or {})}
    (directory / "config.yaml").write_text(yaml.safe_dump(plain))
    lines = [f"{step},{step},0.0,{rate},{step + 1.0},\n" for step, rate in enumerate(solved)]
    if validations:
        lines = ["0,,,,,0.25\n", *lines, f"{len(solved)},,,,,{held_out}\n"]
    (directory / "metrics.csv").write_text(HEAD + "".join(lines))
    ended = {"status": "finished", "optimized_metric": 0.5} if summary is None else summary
    if ended:
        (directory / "summary.json").write_text(json.dumps(ended))
    if choices is not None:
        hydra = {"hydra": {"runtime": {"choices": dict(choices)}}}
        (directory / ".hydra/hydra.yaml").write_text(yaml.safe_dump(hydra))
    return directory


def failed_folder(directory: Path, error: str, overrides: Sequence[str] = ()) -> Path:
    """A job that failed before it had a configuration."""
    (directory / ".hydra").mkdir(parents=True)
    (directory / ".hydra/overrides.yaml").write_text(yaml.safe_dump(list(overrides)))
    (directory / "summary.json").write_text(json.dumps({"status": "failed", "error": error}))
    return directory
