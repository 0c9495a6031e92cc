"""Scoring several mask draws in one forward pass."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


def masked_log_probability(
    policy: Scorer, sequences: Sequences, corruption: Corruption
) -> Float[Tensor, "draw sample completion_position"]:
    """log p(token | corruption) of every draw at counted masked positions, 0 elsewhere (nats)."""
    draws, samples, length = corruption.mask.shape
    repeated = Sequences(
        sequences.prompt_ids.repeat(draws, 1),
        sequences.prompt_mask.repeat(draws, 1),
        sequences.completion_ids.repeat(draws, 1),
        sequences.completion_mask.repeat(draws, 1),
    )
    prompt_mask = corruption.prompt_mask
    values = policy.log_likelihood(
        repeated,
        corruption.mask.flatten(0, 1),
        None if prompt_mask is None else prompt_mask.flatten(0, 1),
    )
    return values.view(draws, samples, length)


def weighted_likelihood(policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
    """The proxies that are weighted sums: L̂ = Σ_draws Σ_k weight_k·log p(y_k | corruption)."""
    values = masked_log_probability(policy, sequences, corruption)
    value = (corruption.weight * values).sum((0, 2))
    return Likelihood(value, value)
