"""An upper bound of a completion's log-likelihood from several mask draws: SPG's EUBO."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from annotated_types import Ge
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stabledrl.functional.reduce import masked_mean


def evidence_upper_bound(
    log_probability: Float[Tensor, "draw sample position"],
    scored: Bool[Tensor, "draw sample position"],
    length: Int[Tensor, " sample"],
    beta: Annotated[float, Ge(1)] = 1.5,
) -> Float[Tensor, " sample"]:
    """The evidence upper bound of SPG per token, in nats.

    Formula: (1/β)·mean over tokens k scored in any draw of log( mean_K p_k^β·1[k scored]/t_j ),
    t_j = m_j/L, m_j the scored tokens of draw j, `length` L. SPG, arXiv 2510.09541, §3 (a Rényi
    variational bound of every token); StableDRL's released code.
    log_probability: log p_k at scored places, anything elsewhere. A sample without any gives 0.

    What it bounds: in the limit of many uniform draws it holds a power mean of p_k over reveal
    orders; L times it is then at least the order-averaged ELBO for every β ≥ 1, and by Hölder at
    least the sampler's log-likelihood for β ≥ L, but not for every β below. A few draws are biased
    either way and can lie below their own ELBO; one draw gives its mean log p_k − log(t)/β.
    """
    count = scored.sum(-1, keepdim=True).clamp(min=1)
    fraction = count / length.clamp(min=1)[:, None]
    seen = scored.any(0)
    term = torch.where(scored, beta * log_probability - fraction.log(), -torch.inf)
    # where no draw scores a token every term is −inf, of which logsumexp has a NaN gradient
    term = torch.where(seen, term, 0)
    token = (term.logsumexp(0) - math.log(len(scored))) / beta
    return masked_mean(token, seen, -1)
