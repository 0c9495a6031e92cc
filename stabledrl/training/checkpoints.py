"""Which checkpoint to go on from, and which weights one holds."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from stabledrl.errors import UserError

log = logging.getLogger(__name__)

Checkpoint = tuple[Path, dict[str, Any]]  # where it lies, and what is in it

# what a checkpoint of ours holds, among others
OURS = {"state_dict", "global_step", "epoch", "history"}


def find(ckpt_path: str | None, directory: Path) -> Checkpoint | None:
    """The checkpoint that `ckpt_path` means in a run directory, and its content; None for null.

    `last` is the newest one that can be read: a half-written file is passed over with a warning.
    A path is taken as it is. Raises UserError if there is none or it is broken. Only tensors and
    plain values are ever unpickled.
    """
    if ckpt_path is None:
        return None
    folder = directory / "checkpoints"
    if ckpt_path == "last":
        candidates = sorted(folder.glob("phase_*.ckpt"), reverse=True)
    else:
        candidates = [Path(ckpt_path)]
    for path in candidates:
        try:
            return path, read(path)
        except UserError as error:
            if ckpt_path != "last":
                raise
            log.warning("%s; trying the one before it", error)
    raise UserError(f"ckpt_path={ckpt_path}: there is no usable checkpoint in {folder}")


def clear(directory: Path) -> None:
    """Remove the checkpoints in a run directory: of a run killed there, when it begins anew.

    Lightning never overwrites, so `last.ckpt` would stay that of the killed run.
    """
    for path in (directory / "checkpoints").glob("*.ckpt"):
        path.unlink()


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint of ours; UserError if it is missing, broken or something else."""
    if not path.is_file():
        raise UserError(f"ckpt_path={path}: there is no such file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:  # torch's own words are about its flags
        reason = "something else than tensors and plain values is in it"
        raise UserError(f"ckpt_path={path}: not a readable checkpoint ({reason})") from error
    except Exception as error:  # broken bytes make the reader fail in any way
        raise UserError(f"ckpt_path={path}: not a readable checkpoint ({_brief(error)})") from error
    if not isinstance(content, dict) or not content.keys() >= OURS:
        raise UserError(f"ckpt_path={path}: not a training checkpoint")
    return content


@dataclass(frozen=True)
class Weights:
    """Which weights of a module its checkpoints hold: those that are trained, and buffers.

    shapes: of what is held, by name. frozen: names of what is not. base: hash of the frozen ones.
    """

    shapes: Mapping[str, torch.Size]
    frozen: frozenset[str]
    base: str

    @classmethod
    def of(cls, module: nn.Module) -> Weights:
        """As the module is now; a weight that two layers share has both their names."""
        named = dict(module.named_parameters(remove_duplicate=False))
        frozen = {name: value for name, value in named.items() if not value.requires_grad}
        state = module.state_dict()
        shapes = {name: value.shape for name, value in state.items() if name not in frozen}
        return cls(shapes, frozenset(frozen), sampled_hash(frozen))

    def reduce(self, checkpoint: dict[str, Any]) -> None:
        """Take the frozen weights out of a checkpoint: they are the model's own, gigabytes."""
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {k: v for k, v in state.items() if k not in self.frozen}
        checkpoint["base"] = self.base

    def require(self, checkpoint: Mapping[str, Any]) -> None:
        """UserError for a checkpoint of other weights, or trained upon other frozen ones."""
        found = {name: value.shape for name, value in checkpoint["state_dict"].items()}
        differing = [
            name
            for name in sorted(found.keys() | self.shapes.keys())
            if found.get(name) != self.shapes.get(name)
        ]
        if differing:
            raise UserError(
                f"ckpt_path: this checkpoint is of another model or adapter, {len(differing)} "
                f"weights differ in name or shape, {differing[0]} first"
            )
        if self.frozen and checkpoint.get("base") != self.base:
            raise UserError(
                "ckpt_path: the adapter in this checkpoint was trained on other weights than those "
                "of model.path"
            )


def sampled_hash(tensors: Mapping[str, Tensor], values: int = 64) -> str:
    """Hash of names, shapes and some evenly spaced values of each: cheap, whatever their size."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // values)].float().cpu()
        found.update(f"{name} {tuple(tensor.shape)}".encode())
        found.update(some.numpy().tobytes())
    return found.hexdigest()


def _brief(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:100] if str(error).strip() else type(error).__name__
