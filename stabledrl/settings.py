"""Reads a resolved configuration, as plain dicts: what the rules ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stabledrl.binding import locate

Settings = Mapping[str, Any]


def select(cfg: Settings, path: str) -> Any:
    """The value at a dotted key path, None if there is none."""
    node: Any = cfg
    for key in path.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def number(cfg: Settings, path: str) -> int | None:
    """The positive whole number at a key path, None if there is none."""
    value = select(cfg, path)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def component(cfg: Settings, path: str) -> Any:
    """The function or class named at a key path, None if there is none."""
    target = select(cfg, f"{path}._target_")
    try:
        return locate(target) if isinstance(target, str) else None
    except LookupError:
        return None


def trains_on(cfg: Settings) -> str | None:
    """What the job trains on (`stabledrl.declarations`)."""
    kind: str | None = getattr(component(cfg, "job"), "trains_on", "rollouts")
    return kind


def collects_phases(cfg: Settings) -> bool:
    """Whether the job gathers rollout phases, so that their sizes have to fit."""
    stated = getattr(component(cfg, "job"), "collects_phases", None)
    return trains_on(cfg) == "rollouts" if stated is None else bool(stated)


def processes(cfg: Settings) -> int:
    """Number of training processes: trainer.devices x trainer.num_nodes."""
    return processes_per_node(cfg) * (number(cfg, "trainer.num_nodes") or 1)


def processes_per_node(cfg: Settings) -> int:
    """Number of training processes of one machine: trainer.devices."""
    devices = select(cfg, "trainer.devices")
    if isinstance(devices, str) and "," in devices:  # numbers of devices, as Lightning reads them
        devices = [part for part in devices.split(",") if part.strip()]
    if isinstance(devices, list):
        return len(devices)
    if isinstance(devices, str) and devices.isdigit():
        return int(devices)
    if isinstance(devices, int) and devices > 0:
        return devices
    # auto, -1 or unset: every accelerator there is, one process on CPU
    return 1 if select(cfg, "trainer.accelerator") == "cpu" else _visible_accelerators()


def _visible_accelerators() -> int:
    import torch

    return max(1, torch.cuda.device_count())
