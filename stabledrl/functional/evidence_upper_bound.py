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
    """The evidence upper bound per token, in nats, up to a constant that no gradient sees.

    Formula: (1/β)·mean over tokens k scored in any draw of log( mean_K p_k^β·1[k scored]/t_j ),
    t_j = m_j/L, m_j the scored tokens of draw j, `length` L. SPG, arXiv 2510.09541, §3 (a Rényi
    variational bound of every token); StableDRL's released code.
    log_probability: log p_k at scored places, anything elsewhere. A sample without any gives 0.

    In the limit of many uniform draws it is, per token, a power mean of p_k over reveal orders: at
    least the order-averaged ELBO for every β ≥ 1, and by Hölder at least the sampler's
    log-likelihood for β ≥ L; below that only with the paper's constant, left out here as there.
    With few draws the log of a mean is too small, even below the ELBO; with one draw it is the
    draw's mean log p_k plus −log(t)/β.
    """
    count = scored.sum(-1, keepdim=True).clamp(min=1)
    fraction = count / length.clamp(min=1)[:, None]
    seen = scored.any(0)
    term = torch.where(scored, beta * log_probability - fraction.log(), -torch.inf)
    # where no draw scores a token every term is −inf, of which logsumexp has a NaN gradient
    term = torch.where(seen, term, 0)
    token = (term.logsumexp(0) - math.log(len(scored))) / beta
    return masked_mean(token, seen, -1)
