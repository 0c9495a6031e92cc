"""Which checkpoint to go on from."""

from __future__ import annotations

import logging
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

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


def _brief(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:100] if str(error).strip() else type(error).__name__
