"""Rules between the switches of the objective: estimator, masking, ratio, normalization, KL.

Written as those of `stabledrl.rules`, which takes them up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

from stabledrl.settings import Settings, collects_phases, component, number, select, trains_on

# What a score can be, in words, and the ratio that gives it.
SCORES = {
    "summed": ("summed over tokens", "sequence"),
    "per_token": ("per token", "per_token"),
}


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


def estimator_has_room(cfg: Settings) -> Iterator[str]:
    """An estimator that enumerates masks takes short completions only."""
    estimator = component(cfg, "estimator")
    blocks = getattr(component(cfg, "attention"), "of_blocks", False)
    key = "sampler.block_length" if blocks else "sampler.length"
    length = number(cfg, key)
    longest = getattr(estimator, "longest_completion", None)
    if length and longest and length > longest:
        yield (
            f"{key}={length} is too long for estimator={estimator.__name__}, which takes "
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
    if level is None or estimator is None or not collects_phases(cfg):
        return
    needed = getattr(level, "needs_token_values", False) and select(cfg, "kl.coefficient")
    if needed and not _scores_every_token(cfg):
        yield (
            f"kl.level={level.__name__} needs an estimator with token values, "
            f"estimator={estimator.__name__} as configured has none: take kl=k3 or kl=none"
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
            f"estimator={select(cfg, 'estimator._target_')}, which brings its own masks: "
            "take masking=uniform"
        )


OBJECTIVE_RULES: tuple[Callable[[Settings], Iterator[str]], ...] = (
    whole_step_in_one_batch,
    score_fits_normalization,
    filter_keeps_something,
    estimator_has_room,
    estimator_has_a_decoding,
    divergence_has_token_values,
    ratio_has_token_values,
    masking_is_accepted,
)
