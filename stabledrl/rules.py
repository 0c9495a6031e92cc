"""Rules across groups: each yields one line per fault, beginning with the key it is about.

A rule reads the resolved configuration as plain dicts and stays silent where a key it needs is
absent or of the wrong kind: that is reported elsewhere. A new rule is a function and an entry in
RULES.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stabledrl.binding import locate

Settings = Mapping[str, Any]


def group_has_a_baseline(cfg: Settings) -> Iterator[str]:
    """A group of one has no other completion to be compared with."""
    size = number(cfg, "rollout.group_size")
    if size == 1:
        yield "rollout.group_size=1: G=1 gives no advantage, take at least 2 completions per prompt"


def blocks_divide(cfg: Settings) -> Iterator[str]:
    """A completion consists of whole blocks."""
    length, block = number(cfg, "sampler.length"), number(cfg, "sampler.block_length")
    if length and block and length % block:
        yield f"sampler.length={length} is not a multiple of sampler.block_length={block}"


def steps_fit(cfg: Settings) -> Iterator[str]:
    """Each denoising step commits at least one token, and each block gets as many steps."""
    length, block = number(cfg, "sampler.length"), number(cfg, "sampler.block_length")
    steps = number(cfg, "sampler.steps")
    if length and steps and steps > length:
        yield f"sampler.steps={steps} is more than sampler.length={length}: a step commits a token"
    elif length and block and steps and not length % block and steps * block % length:
        blocks = length // block
        yield (
            f"sampler.steps={steps} is not a multiple of the {blocks} blocks that "
            f"sampler.length={length} and sampler.block_length={block} give"
        )


def completion_has_room(cfg: Settings) -> Iterator[str]:
    """A task whose answers have a fixed number of tokens needs that many."""
    length, needed = number(cfg, "sampler.length"), number(cfg, "task.fixed_length")
    if length and needed and length < needed:
        yield f"sampler.length={length} is too short: task.fixed_length={needed} tokens are needed"


def phase_divides(cfg: Settings) -> Iterator[str]:
    """A phase consists of whole optimiser steps, the same number on every process."""
    phase = number(cfg, "rollout.prompts_per_phase")
    batch = number(cfg, "rollout.prompts_per_batch")
    accumulation = number(cfg, "trainer.accumulate_grad_batches") or 1
    devices = processes(cfg)
    if phase and batch and phase % (batch * accumulation * devices):
        yield (
            f"rollout.prompts_per_phase={phase} is not a multiple of "
            f"rollout.prompts_per_batch={batch} x trainer.accumulate_grad_batches={accumulation} "
            f"x {devices} process{'es' if devices > 1 else ''}"
        )


def whole_step_normalization(cfg: Settings) -> Iterator[str]:
    """A normalization over the whole optimiser step needs it in one batch, on one process."""
    normalization = component(cfg, "normalization")
    if not getattr(normalization, "needs_whole_step", False):
        return
    name = normalization.__name__
    accumulation, devices = number(cfg, "trainer.accumulate_grad_batches") or 1, processes(cfg)
    if accumulation > 1:
        yield (
            f"normalization={name} normalises over the whole optimiser step: "
            f"trainer.accumulate_grad_batches={accumulation} must be 1"
        )
    if devices > 1:
        yield (
            f"normalization={name} normalises over the whole optimiser step: "
            f"one process only, not {devices}"
        )


def masking_is_accepted(cfg: Settings) -> Iterator[str]:
    """Estimators that bring their own masks take no other masking than uniform."""
    masking, estimator = component(cfg, "masking.pattern"), component(cfg, "estimator")
    if masking is None or estimator is None or masking.__name__.lower() == "uniform":
        return
    if "masking" not in inspect.signature(estimator).parameters:
        yield (
            f"masking.pattern={select(cfg, 'masking.pattern._target_')} does not go with "
            f"estimator={select(cfg, 'estimator._target_')}, which brings its own masks"
        )


def checkpoint_exists(cfg: Settings) -> Iterator[str]:
    """ckpt_path is null, last, best or a path that is there."""
    path = select(cfg, "ckpt_path")
    if isinstance(path, str) and path not in {"last", "best"} and not os.path.exists(path):
        yield f"ckpt_path={path}: there is no such file (null, last, best or a path)"


RULES: tuple[Callable[[Settings], Iterator[str]], ...] = (
    group_has_a_baseline,
    blocks_divide,
    steps_fit,
    completion_has_room,
    phase_divides,
    whole_step_normalization,
    masking_is_accepted,
    checkpoint_exists,
)


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


def processes(cfg: Settings) -> int:
    """Number of training processes: trainer.devices x trainer.num_nodes."""
    devices = select(cfg, "trainer.devices")
    if isinstance(devices, list):
        count = len(devices)
    elif isinstance(devices, str) and devices.isdigit():
        count = int(devices)
    elif isinstance(devices, int) and devices > 0:
        count = devices
    else:  # auto, -1 or unset: every accelerator there is, one process on CPU
        count = 1 if select(cfg, "trainer.accelerator") == "cpu" else _visible_accelerators()
    return count * (number(cfg, "trainer.num_nodes") or 1)


def _visible_accelerators() -> int:
    import torch

    return max(1, torch.cuda.device_count())
