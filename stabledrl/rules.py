"""Rules across groups: each yields one line per fault, beginning with the key it is about.

A rule reads the resolved configuration as plain dicts and stays silent where a key it needs is
absent or of the wrong kind: that is reported elsewhere. A new rule is a function and an entry in
RULES.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator

from stabledrl.block_rules import BLOCK_RULES
from stabledrl.errors import did_you_mean, listing
from stabledrl.objective_rules import OBJECTIVE_RULES
from stabledrl.settings import (
    Settings,
    collects_phases,
    component,
    number,
    processes,
    select,
    trains_on,
)

PRECISIONS = ("None", "32", "32-true", "bf16-mixed")  # as Lightning names them, of those that hold

# What third-party code should have in its annotations.
MINIMA = (
    ("trainer.max_epochs", 1),  # Lightning's -1 never ends
    ("trainer.check_val_every_n_epoch", 1),
    ("trainer.accumulate_grad_batches", 1),
    ("trainer.gradient_clip_val", 0),
    ("optimizer.lr", 0),
    ("optimizer.weight_decay", 0),
)


def group_has_a_baseline(cfg: Settings) -> Iterator[str]:
    """A group of one has no other completion to be compared with."""
    size = number(cfg, "rollout.group_size")
    if size == 1 and collects_phases(cfg):
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


def numbers_are_in_range(cfg: Settings) -> Iterator[str]:
    """Numbers of Lightning and torch, which look at them late or never."""
    for path, minimum in MINIMA:
        value = select(cfg, path)
        if type(value) not in (int, float):
            continue
        if not value >= minimum:  # refuses NaN too
            yield f"{path}={value}: should be at least {minimum}"
        elif math.isinf(value):
            yield f"{path}={value}: should be finite"


def phase_divides(cfg: Settings) -> Iterator[str]:
    """A phase consists of whole optimiser steps of all processes."""
    phase = number(cfg, "rollout.prompts_per_phase")
    batch = number(cfg, "rollout.prompts_per_batch")
    accumulation = number(cfg, "trainer.accumulate_grad_batches") or 1
    if not (collects_phases(cfg) and phase and batch):
        return
    count = processes(cfg) if trains_on(cfg) else 1
    if phase % (batch * accumulation * count):
        yield (
            f"rollout.prompts_per_phase={phase} is not a multiple of "
            f"rollout.prompts_per_batch={batch} x trainer.accumulate_grad_batches={accumulation}"
            + (f" x {count} processes" if count > 1 else "")
        )


def sharded_forwards_are_equal(cfg: Settings) -> Iterator[str]:
    """Processes that share the weights have to make the same forward passes."""
    strategy, estimator = component(cfg, "trainer.strategy"), component(cfg, "estimator")
    if getattr(strategy, "shards", False) and getattr(estimator, "varying_forwards", False):
        yield (
            f"estimator={estimator.__name__} makes as many forward passes as completions are long, "
            "which processes that share the weights cannot: take trainer=ddp or another estimator"
        )


def sharded_weights_are_trained(cfg: Settings) -> Iterator[str]:
    """Weights that are divided together are of one precision, and all are in the checkpoint."""
    strategy, adapter = component(cfg, "trainer.strategy"), component(cfg, "adapter")
    if getattr(strategy, "shards", False) and getattr(adapter, "needs_training", False):
        yield (
            f"adapter={adapter.__name__} leaves weights frozen, which a strategy that divides the "
            "weights does not take yet: take trainer=ddp or adapter=none"
        )


def threshold_means_something(cfg: Settings) -> Iterator[str]:
    """A threshold compares confidences with a probability."""
    threshold, confidence = select(cfg, "sampler.threshold"), component(cfg, "sampler.confidence")
    if threshold is not None and not getattr(confidence, "takes_threshold", True):
        yield (
            f"sampler.threshold={threshold} means nothing to "
            f"sampler.confidence={confidence.__name__}, which is no probability: "
            "set sampler.threshold=null"
        )


def precision_is_kept(cfg: Settings) -> Iterator[str]:
    """Lightning would convert weights, batches and adapters too, or scale the gradient."""
    precision = select(cfg, "trainer.precision")
    if trains_on(cfg) is not None and str(precision) not in PRECISIONS:
        yield (
            f"trainer.precision={precision}: should be 32-true or bf16-mixed; a model in "
            "bfloat16 throughout is model.dtype=bfloat16"
        )


def adapter_is_trained(cfg: Settings) -> Iterator[str]:
    """An adapter that nobody trains does nothing."""
    idle = trains_on(cfg) is None and not collects_phases(cfg)
    if idle and getattr(component(cfg, "adapter"), "needs_training", False):
        yield (
            f"adapter: job={component(cfg, 'job').__name__} trains none, and a new one does "
            "nothing: set adapter=none; model.path=<run>/model has a trained one merged"
        )


def checkpoint_exists(cfg: Settings) -> Iterator[str]:
    """ckpt_path is null, last or the path of a file that is there."""
    path = select(cfg, "ckpt_path")
    if isinstance(path, str) and path != "last" and not os.path.isfile(path):
        yield f"ckpt_path={path}: there is no such file (null, last or a path)"


def checkpoint_is_used(cfg: Settings) -> Iterator[str]:
    """A job that does not train has nothing to go on with."""
    if select(cfg, "ckpt_path") is not None and trains_on(cfg) is None:
        yield (
            f"ckpt_path={select(cfg, 'ckpt_path')}: job={component(cfg, 'job').__name__} takes no "
            "checkpoint; name the model that a run left: model.path=<run>/model"
        )


def metric_is_measured(cfg: Settings) -> Iterator[str]:
    """A name that no validation measures would be returned as None, after all the training."""
    name, known = select(cfg, "optimized_metric"), getattr(component(cfg, "job"), "metrics", None)
    if isinstance(name, str) and known and name not in known:
        hint = did_you_mean(name, known) or f"; take one of {listing(known)}"
        yield f"optimized_metric={name}: no validation measures it{hint}"


def training_ends(cfg: Settings) -> Iterator[str]:
    """Without a number of epochs Lightning takes 1000."""
    kind, trainer = component(cfg, "trainer"), select(cfg, "trainer")
    if not kind or trains_on(cfg) is None or "max_epochs" not in inspect.signature(kind).parameters:
        return
    if trainer.get("max_epochs") is None and trainer.get("max_steps", -1) in (-1, None):
        yield "trainer.max_epochs=null: should be a whole number, at least 1"


def optimizer_accepts_its_numbers(cfg: Settings) -> Iterator[str]:
    """Optimisers look at their numbers when they are built, after everything else."""
    optimizer, settings = component(cfg, "optimizer"), select(cfg, "optimizer")
    told = any(line.startswith("optimizer.") for line in numbers_are_in_range(cfg))
    if optimizer is None or told or trains_on(cfg) is None or not settings.get("_partial_"):
        return
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1, 1))  # a matrix: some take nothing else
    given = {key: value for key, value in settings.items() if not key.startswith("_")}
    try:
        optimizer([parameter], **given)
    except Exception as error:  # whatever it dies of
        yield f"optimizer: {error}"


RULES: tuple[Callable[[Settings], Iterator[str]], ...] = (
    *OBJECTIVE_RULES,
    *BLOCK_RULES,
    group_has_a_baseline,
    blocks_divide,
    steps_fit,
    completion_has_room,
    numbers_are_in_range,
    phase_divides,
    sharded_forwards_are_equal,
    sharded_weights_are_trained,
    threshold_means_something,
    metric_is_measured,
    training_ends,
    optimizer_accepts_its_numbers,
    precision_is_kept,
    adapter_is_trained,
    checkpoint_exists,
    checkpoint_is_used,
)
