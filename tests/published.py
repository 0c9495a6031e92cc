"""Recordings of published code as the project's own nouns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from stabledrl.algorithm import Algorithm
from stabledrl.functional import clipping
from stabledrl.functional.masking import counted_tokens
from stabledrl.policy import Policy
from stabledrl.types import Batch, Corruption, Likelihood, LossOutput, Scorer, Sequences

MASK, END, PROMPT = 95, 1, 8  # ids of the mask and the end token, tokens of a prompt


def published_sequences(
    ids: Tensor, every_token: bool = False, step: Tensor | None = None
) -> Sequences:
    """Rows of a prompt and a completion; every_token counts those after the end token too."""
    prompt, completion = ids[:, :PROMPT], ids[:, PROMPT:]
    counted = torch.ones_like(completion) > 0 if every_token else counted_tokens(completion, (END,))
    return Sequences(prompt, torch.ones_like(prompt) > 0, completion, counted, step)


def mean_field_corruption(sequences: Sequences, perturbed: Tensor) -> Corruption:
    """The recorded prompt masks of d1 and wd1, the completion hidden. perturbed: input ids."""
    counted = sequences.completion_mask
    hidden = perturbed[:, :PROMPT] == MASK
    return Corruption(torch.ones_like(counted)[None], counted.float()[None], hidden[None])


def clipped_value(
    chosen: Algorithm, policy: Scorer, batch: Batch, low: float, high: float
) -> Tensor:
    """The number that published code reports as its loss: −min(ρA, clip(ρ, low, high)·A), and β·KL.

    Ours, −Σ c·A·ℓ, has its gradient and another value: there a sample that is dropped adds nothing,
    here it adds the bound that it went over.
    """
    likelihood = chosen.estimator(policy, batch.sequences, batch.corruption)
    sequences, size = batch.sequences, batch.group_size
    log_ratio, counted = chosen.ratio.difference(likelihood, batch.old, sequences, size)
    log_weight, keep = chosen.clipping(log_ratio, batch.advantage)
    log_weight = torch.where(
        keep, log_weight, torch.where(log_ratio > 0, math.log(high), math.log(low))
    )
    length = sequences.length.view(-1, size)
    weight = chosen.normalization(log_weight, counted, length, chosen.completion_length)
    value = -(weight * batch.advantage[..., None]).sum() / len(weight)
    return value + chosen.penalty(likelihood, batch.reference, sequences, batch.verdict)


def assert_agrees(
    method: str, ours: Tensor, published: Tensor, tolerance: float = 1e-5, atol: float = 0.0
) -> None:
    """To `tolerance` of the largest entry, or `atol`, and prints which part of that scale it was.

    atol is for sums that cancel, such as losses: float32 ends there before the sum does.
    docs/paper-index.md says how the largest number per method is collected.
    """
    assert ours.shape == published.shape
    assert ours.isfinite().all()
    apart = float((ours.detach() - published).abs().max())
    scale = max(float(published.abs().max()), atol / tolerance)
    print(f"deviation {method} {apart / scale if apart else 0:.1e}")
    assert apart <= tolerance * scale


@dataclass(frozen=True)
class Clip:
    """The two numbers of a two-sided clip: of a weight, and of the value that is reported."""

    low: float
    high: float

    @property
    def rule(self) -> partial[tuple[Tensor, Tensor]]:
        return partial(clipping.conditional, epsilon_low=self.low, epsilon_high=self.high)

    def value(self, chosen: Algorithm, policy: Scorer, batch: Batch) -> Tensor:
        return clipped_value(chosen, policy, batch, 1 - self.low, 1 + self.high)


def group_of_four(
    sequences: Sequences,
    corruption: Corruption,
    advantages: Tensor,
    old: Tensor,
    reference: Tensor | None = None,
) -> Batch:
    """The four recorded completions of one prompt. old, reference: values, per token or not."""

    def recorded(value: Tensor) -> Likelihood:
        if value.ndim == 1:
            return Likelihood(value, value)
        value = torch.where(sequences.completion_mask, value, 0)
        return Likelihood(value.sum(-1), value.sum(-1), value)

    judged = None if reference is None else recorded(reference)
    return Batch(
        sequences,
        corruption,
        4,
        advantages[None],
        torch.ones(1, 4, dtype=torch.bool),
        recorded(old),
        reference=judged,
    )


def assert_gradient(method: str, output: LossOutput, policy: Policy, published: Tensor) -> None:
    """Of the loss with respect to the final norm's weight."""
    (gradient,) = torch.autograd.grad(output.loss, policy.backbone.model.norm.weight)
    assert_agrees(f"{method} gradient", gradient, published)
