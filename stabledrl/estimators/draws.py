"""Scoring several mask draws in one forward pass."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from stabledrl.functional.masking import Masking
from stabledrl.functional.strata import mean_weight
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences


def averaged_draws(
    masking: Masking, draws: int, sequences: Sequences, generator: torch.Generator
) -> Corruption:
    """K masks per sample of which each scored token weighs L/(K·m), m the scored ones of its draw.

    The weighted sum is L times the mean over draws of the mean over scored tokens.
    """
    counted = sequences.completion_mask
    mask, prompt_mask = masking(counted, sequences.prompt_mask, draws, generator)
    return Corruption(mask, mean_weight(mask & counted, sequences.length), prompt_mask)


def masked_log_probability(
    policy: Scorer, sequences: Sequences, corruption: Corruption
) -> Float[Tensor, "draw sample completion_position"]:
    """log p(token | corruption) of every draw at counted masked positions, 0 elsewhere (nats).

    A draw that gives no weight to any token of a sample costs that sample nothing and is 0
    everywhere.
    """
    weighed = corruption.weight.any(-1, keepdim=True)
    return policy.log_likelihood(sequences, corruption.mask & weighed, corruption.prompt_mask)


def weighted_likelihood(policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
    """The proxies that are weighted sums: L̂ = Σ_draws Σ_k weight_k·log p(y_k | corruption)."""
    values = masked_log_probability(policy, sequences, corruption)
    value = (corruption.weight * values).sum((0, 2))
    return Likelihood(value, value)


def weighted_token_likelihood(
    policy: Scorer, sequences: Sequences, corruption: Corruption
) -> Likelihood:
    """The same with token values: Σ_draws weight_k·log p(y_k | corruption) for every token k."""
    values = masked_log_probability(policy, sequences, corruption)
    token_value = (corruption.weight * values).sum(0)
    value = token_value.sum(-1)
    return Likelihood(value, value, token_value)
