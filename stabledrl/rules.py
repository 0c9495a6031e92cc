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

from stabledrl.errors import did_you_mean, listing
from stabledrl.settings import (
    Settings,
    collects_phases,
    component,
    number,
    processes,
    select,
    trains_on,
)

# What third-party code should have in its annotations.
MINIMA = (
    ("trainer.max_epochs", 1),  # Lightning's -1 never ends
    ("trainer.check_val_every_n_epoch", 1),
    ("trainer.accumulate_grad_batches", 1),
    ("trainer.gradient_clip_val", 0),
    ("optimizer.lr", 0),
    ("optimizer.weight_decay", 0),
)
# What a score can be, in words, and the ratio that gives it.
SCORES = {
    "summed": ("summed over tokens", "sequence"),
    "per_token": ("per token", "per_token"),
}


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
    """A phase consists of whole optimiser steps."""
    phase = number(cfg, "rollout.prompts_per_phase")
    batch = number(cfg, "rollout.prompts_per_batch")
    accumulation = number(cfg, "trainer.accumulate_grad_batches") or 1
    if collects_phases(cfg) and phase and batch and phase % (batch * accumulation):
        yield (
            f"rollout.prompts_per_phase={phase} is not a multiple of "
            f"rollout.prompts_per_batch={batch} x trainer.accumulate_grad_batches={accumulation}"
        )


def one_process(cfg: Settings) -> Iterator[str]:
    """Every process would collect and train on the same data."""
    count = processes(cfg)
    if count > 1 and trains_on(cfg) is not None:
        nodes = number(cfg, "trainer.num_nodes") or 1
        yield (
            f"trainer.devices={select(cfg, 'trainer.devices')}: {count} processes would all train "
            "on the same data, several are not supported yet: set trainer.devices=1"
            + (" and trainer.num_nodes=1" if nodes > 1 else "")
        )


def whole_step_in_one_batch(cfg: Settings) -> Iterator[str]:
    """What averages over the whole optimiser step needs it in one batch."""
    accumulation = number(cfg, "trainer.accumulate_grad_batches") or 1
    if not collects_phases(cfg) or accumulation == 1:
        return
    used = ["normalization", "kl.level"] if select(cfg, "kl.coefficient") else ["normalization"]
    for key in used:
        average = component(cfg, key)
        if getattr(average, "needs_whole_step", False):
            yield (
                f"{key}={average.__name__} averages over the whole optimiser step: "
                f"trainer.accumulate_grad_batches={accumulation} must be 1"
            )


def score_fits_normalization(cfg: Settings) -> Iterator[str]:
    """A normalization that holds a length is made for summed scores, or for scores per token."""
    normalization, score = component(cfg, "normalization"), component(cfg, "ratio.score")
    needed, given = getattr(normalization, "score_kind", None), getattr(score, "score_kind", None)
    if needed in SCORES and given in SCORES and needed != given:
        yield (
            f"normalization={normalization.__name__} is for scores {SCORES[needed][0]}, "
            f"ratio.score={score.__name__} gives scores {SCORES[given][0]}: "
            f"take ratio={SCORES[needed][1]} or normalization=group"
        )


def filter_keeps_something(cfg: Settings) -> Iterator[str]:
    """A range of accuracies has to hold one."""
    lowest, highest = (select(cfg, f"group_filter.{end}") for end in ("lowest", "highest"))
    if all(isinstance(end, int | float) for end in (lowest, highest)) and lowest > highest:
        yield (
            f"group_filter.lowest={lowest} is above group_filter.highest={highest}: every group "
            "would be dropped"
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


def estimator_has_room(cfg: Settings) -> Iterator[str]:
    """An estimator that enumerates masks takes short completions only."""
    estimator, length = component(cfg, "estimator"), number(cfg, "sampler.length")
    longest = getattr(estimator, "longest_completion", None)
    if length and longest and length > longest:
        yield (
            f"sampler.length={length} is too long for estimator={estimator.__name__}, which takes "
            f"at most {longest} tokens: shorten it or take another estimator"
        )


def estimator_has_a_decoding(cfg: Settings) -> Iterator[str]:
    """An estimator that replays a decoding cannot score texts, which nobody decoded."""
    estimator, job = component(cfg, "estimator"), component(cfg, "job")
    if not getattr(estimator, "replays_decoding", False):
        return
    solutions = trains_on(cfg) == "solutions"
    if solutions or getattr(job, "scores_texts", False):
        yield (
            f"estimator={estimator.__name__} replays a decoding, and job={job.__name__} "
            f"{'trains on solutions' if solutions else 'scores texts'}: take another estimator"
        )


def divergence_has_token_values(cfg: Settings) -> Iterator[str]:
    """A divergence per token needs an estimator that scores every token, every time."""
    level, estimator = component(cfg, "kl.level"), component(cfg, "estimator")
    if level is None or estimator is None or not getattr(level, "needs_token_values", False):
        return
    if not _scores_every_token(cfg) and select(cfg, "kl.coefficient"):
        yield (
            f"kl.level={level.__name__} needs an estimator with token values, "
            f"estimator={estimator.__name__} as configured has none: take kl.level=divided"
        )


def ratio_has_token_values(cfg: Settings) -> Iterator[str]:
    """A ratio of every token needs an estimator that scores every token, every time."""
    units, estimator = component(cfg, "ratio.units"), component(cfg, "estimator")
    if units is None or estimator is None or not collects_phases(cfg):
        return
    if getattr(units, "needs_token_values", False) and not _scores_every_token(cfg):
        yield (
            f"ratio.units={units.__name__} needs an estimator with token values, "
            f"estimator={estimator.__name__} as configured has none: take ratio=per_token"
        )


def _scores_every_token(cfg: Settings) -> bool:
    """Whether the estimator has token values: one that can draw has them where it does not."""
    has_values = getattr(component(cfg, "estimator"), "token_values", False)
    return bool(has_values) and not select(cfg, "estimator.draws")


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
    group_has_a_baseline,
    blocks_divide,
    steps_fit,
    completion_has_room,
    numbers_are_in_range,
    phase_divides,
    one_process,
    whole_step_in_one_batch,
    score_fits_normalization,
    filter_keeps_something,
    threshold_means_something,
    estimator_has_room,
    estimator_has_a_decoding,
    metric_is_measured,
    training_ends,
    optimizer_accepts_its_numbers,
    divergence_has_token_values,
    ratio_has_token_values,
    masking_is_accepted,
    checkpoint_exists,
    checkpoint_is_used,
)
