"""What makes two configurations the same run, and the hash that stands for it.

Everything counts but where results go and how they look. Places are left out of values too: a path
inside the run directory or inside this clone reads the same wherever they lie, and files that are
read count by their content where the configuration states it (`content` beside `path`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

# Top-level keys that change where results go and how they look, never what they are.
IMMATERIAL = ("hydra", "paths", "extras", "logger", "tags", "name")


def material(cfg: DictConfig) -> dict[str, Any]:
    """The part of a composed configuration that decides its numbers: resolved, plain."""
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg):
        if "paths" in cfg:
            cfg.paths.run_dir = ""  # not known yet when it is asked for, and others refer to it
        for key in IMMATERIAL:
            if key != "paths":
                cfg.pop(key, None)
    return _material(OmegaConf.to_container(cfg, resolve=True), [])


def recorded(path: Path) -> dict[str, Any] | None:
    """The same of the resolved configuration that a run left; None if none can be read there."""
    try:
        plain: Any = OmegaConf.to_container(OmegaConf.load(path))
        run_directory = plain["paths"]["run_dir"]
    except Exception:  # broken text makes the reader fail in any way
        return None
    return _material(plain, [run_directory])


def resolved_hash(cfg: DictConfig) -> str:
    """Eight hex digits of the configuration, the same wherever and whenever it runs."""
    return digest(material(cfg))


def digest(value: Any) -> str:
    """Eight hex digits of a plain value."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first key whose values differ between two configurations, with both; None if none does.

    The number of epochs does not count, since a run may be made longer: a learning rate that falls
    to the end of training is then, after the first update, that of a run of the new length. Nor
    does the checkpoint that a run began from.
    """
    ours, theirs = dict(_flat(one)), dict(_flat(other))
    for key in sorted(ours.keys() | theirs.keys()):
        if key not in ("trainer.max_epochs", "ckpt_path") and ours.get(key) != theirs.get(key):
            return key, ours.get(key), theirs.get(key)
    return None


def _material(plain: Any, places: list[str]) -> dict[str, Any]:
    root = os.environ.get("STABLEDRL_ROOT")
    kept = {key: value for key, value in plain.items() if key not in IMMATERIAL}
    if kept.get("ckpt_path") == "last":  # a resumed run is the same run
        kept["ckpt_path"] = None
    return without(kept, [place for place in (*places, root) if place])


def without(value: Any, places: list[str]) -> Any:
    """A plain value in which texts do not begin with one of the places."""
    if isinstance(value, Mapping):
        stated = value.get("content") is not None  # by `content_hash`, of all paths beside it
        return {
            key: without(item, places)
            for key, item in value.items()
            if not (stated and (key == "path" or str(key).endswith("_path")))
        }
    if isinstance(value, list):
        return [without(item, places) for item in value]
    if isinstance(value, str):
        inside = (place for place in places if f"{value}/".startswith(f"{place}/"))
        return value.removeprefix(next(inside, ""))
    return value


def _flat(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; lists are values."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _flat(value, f"{path}.{key}".lstrip("."))
    else:
        yield path, node
