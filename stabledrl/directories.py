"""Where a run leaves its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stabledrl.errors import UserError
from stabledrl.fingerprint import IMMATERIAL, difference, digest, recorded, without


def slug(text: Any) -> str:
    """Text as part of a file name: letters, digits, `.`, `_` and `-` (so never a `=`)."""
    return re.sub(r"[^\w.-]+", "-", str(text)).strip("-") or "none"


def run_family(parent: str, choices: Mapping[str, str], seed: int) -> Path:
    """`<parent>/<job>/<algorithm>-<task>-<model>-s<seed>`: runs that share these."""
    what = "-".join(slug(choices.get(group)) for group in ("algorithm", "task", "model"))
    return Path(parent) / slug(choices.get("job")) / f"{what}-s{seed}"


def last_directory(family: Path, settings: Mapping[str, Any]) -> str:
    """The newest run of a family with these settings (`fingerprint.material`) and a checkpoint.

    A resumed run stays where it was. UserError if there is none, with what the newest run of the
    family does otherwise.
    """
    runs = {path.parent.parent for path in family.glob("*/checkpoints/phase_*.ckpt")}
    hint = ""
    for run in sorted(runs, reverse=True):  # names are times
        left = recorded(run / "config.yaml")
        if left is None:
            hint = hint or f"; the newest there, {run.name}, has no readable config.yaml"
            continue
        # --cfg --resolve replaces value by value: some may name the run already
        differs = difference(without(settings, [str(run)]), left)
        if differs is None:
            return str(run)
        key, ours, theirs = differs
        hint = hint or f"; the newest there, {run.name}, has {key}={theirs}, not {ours}"
    raise UserError(
        f"ckpt_path=last: no run of these settings with a checkpoint in {family}{hint} "
        "(ckpt_path=<file> goes on from any checkpoint)"
    )


def sweep_directory(parent: str, choices: Mapping[str, str], overrides: list[str]) -> str:
    """`<parent>/<sweep>` for a named sweep; otherwise a name that the same command gives again."""
    if choices.get("sweeps"):
        return str(Path(parent) / slug(choices["sweeps"]))
    immaterial = re.compile(rf"[+~]*({'|'.join((*IMMATERIAL, 'ckpt_path'))})\b")
    material = sorted(override for override in overrides if not immaterial.match(override))
    return str(Path(parent) / f"{slug(choices.get('experiment') or 'sweep')}-{digest(material)}")
