"""Recordings of published code as the project's own nouns."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stabledrl.algorithm import Algorithm
from stabledrl.functional.masking import counted_tokens
from stabledrl.types import Batch, Corruption, Scorer, Sequences

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
