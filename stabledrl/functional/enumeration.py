"""Exact likelihoods of a masked-diffusion sampler by enumerating all subsets of hidden tokens.

Subsets of L tokens are numbered by their bits: subset s hides token k where bit k of s is set.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def all_subsets(length: int) -> Bool[Tensor, "subset token"]:
    """Every subset of `length` tokens, 2^length rows, row s from the bits of s."""
    index = torch.arange(2**length)
    return (index[:, None] >> torch.arange(length)) & 1 == 1


def order_averaged_elbo(
    log_probability: Float[Tensor, "subset token"],
) -> Float[Tensor, ""]:
    """J = Σ_{S≠∅} Σ_{k∈S} log p_k(S) / (|S|·C(L,|S|)): the mean over orders of Σ_t log p, in nats.

    What `elbo` and its kin estimate (LLaDA, arXiv 2502.09992, eq. 6). Entries outside S are
    ignored.
    """
    length = log_probability.shape[1]
    hidden = all_subsets(length).to(log_probability.device)
    binomials = [math.comb(length, size) * max(1, size) for size in range(length + 1)]
    weight = 1 / log_probability.new_tensor(binomials)[hidden.sum(-1)]
    return (torch.where(hidden, log_probability, 0).sum(-1) * weight).sum()


def random_order_log_likelihood(
    log_probability: Float[Tensor, "subset token"],
) -> Float[Tensor, ""]:
    """log π(y) of the sampler that reveals one uniformly chosen token per step, in nats; J ≤ log π.

    Formula: F(∅) = 1, F(S) = mean_{k∈S} p_k(S)·F(S∖k), in log space; log π = log F(all).
    """
    length = log_probability.shape[1]
    hidden = all_subsets(length).to(log_probability.device)
    size = hidden.sum(-1)
    token = torch.arange(length, device=hidden.device)
    value = log_probability.new_zeros(2**length)
    for step in range(1, length + 1):  # F of every subset of this size, from those one smaller
        rows = (size == step).nonzero().squeeze(-1)
        smaller = value[rows[:, None] ^ (1 << token)]
        terms = torch.where(hidden[rows], log_probability[rows] + smaller, -torch.inf)
        value = value.index_put((rows,), terms.logsumexp(-1) - math.log(step))
    return value[-1]
