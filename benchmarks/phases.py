"""What a phase of reinforcement learning computes: rollouts, likelihoods, updates, in FLOP."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cost import (
    LLADA_8B,
    Decoding,
    forward_flops,
    rollout_flops,
    update_flops,
)

SHAPE = LLADA_8B
DECODING = Decoding(prompt_length=200, length=256, block_length=32, steps=128)
GROUP_SIZE = 16  # G


@dataclass(frozen=True)
class Recipe:
    """How often a phase's completions are scored, as `Algorithm.prepare` and `loss` do it.

    rows: forward passes per completion and evaluation. scored: masked positions of one, in the
    mean. updates: μ. old, reference: evaluations without gradient of each, for all updates.
    """

    name: str
    rows: int
    scored: float
    updates: int
    old: int
    reference: int


def uniform_scored(length: int) -> float:
    """Mean of m ~ U{1..L}."""
    return (length + 1) / 2


def block_scored(length: int, block_length: int, perturbation: float) -> float:
    """Mean number under masking=block_random: half a block, all after it, some before it."""
    outside = (length - block_length) / 2  # before the block as after it
    return (block_length + 1) / 2 + outside + perturbation * outside


RECIPES = (
    Recipe(
        "`stabledrl_released`: μ=2, K=2",
        rows=2,
        scored=block_scored(DECODING.length, DECODING.block_length, 0.15),
        updates=2,
        old=1,
        reference=0,
    ),
    Recipe(
        "the same with a KL term",
        rows=2,
        scored=block_scored(DECODING.length, DECODING.block_length, 0.15),
        updates=2,
        old=1,
        reference=2,
    ),
    Recipe(
        "`stabledrl`: μ=4, K=1",
        rows=1,
        scored=uniform_scored(DECODING.length),
        updates=4,
        old=1,
        reference=0,
    ),
    Recipe(
        "`diffu_grpo`: μ=12, K=1, paired, KL",
        rows=1,
        scored=DECODING.length,
        updates=12,
        old=12,
        reference=12,
    ),
)


def phase_flops(recipe: Recipe, prompts: int) -> tuple[float, float, float, float]:
    """FLOP of rollouts, old likelihood, reference likelihood, updates (with checkpointing)."""
    completions = prompts * GROUP_SIZE
    rows = completions * recipe.rows
    scored, context = rows * recipe.scored, DECODING.context
    forward = forward_flops(SHAPE, rows, context, scored)
    update = update_flops(SHAPE, rows, context, scored, recomputed=True)
    return (
        rollout_flops(SHAPE, completions, DECODING),
        recipe.old * forward,
        recipe.reference * forward,
        recipe.updates * update,
    )
