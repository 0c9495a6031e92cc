"""Denoising generation: what to sample, how sure to be of it, how much to commit."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stabledrl.declarations import declares


def transfer_quota(masked: int, forwards: int) -> list[int]:
    """Tokens to commit in each forward pass: masked // forwards, the remainder to the first ones.

    LLaDA (arXiv 2502.09992), `get_num_transfer_tokens`. Raises ValueError where a pass would have
    nothing to commit.
    """
    if not 0 < forwards <= masked:
        raise ValueError(f"{forwards} forward passes cannot share {masked} masked tokens")
    base, remainder = divmod(masked, forwards)
    return [base + (index < remainder) for index in range(forwards)]


def linear_time_quota(masked: int, forwards: int, epsilon: float) -> list[int]:
    """Tokens to commit in each forward pass: time runs evenly from 1 down to `epsilon`.

    Formula: of m masks left, pass i commits ⌊m·(1 − t_{i+1}/t_i)⌋, t = linspace(1, ε, passes + 1),
    and the last one commits what is left. Dream (arXiv 2508.15487), `diffusion_generate`; float32,
    as there, because rounding down hangs on the last digit. A pass may have nothing to commit.
    Raises ValueError for fewer than one pass, or ε outside (0, 1).
    """
    if forwards < 1 or not 0 < epsilon < 1:
        raise ValueError(
            f"{forwards} forward passes from time 1 to {epsilon}: there is no such way"
        )
    times = torch.linspace(1, epsilon, forwards + 1, dtype=torch.float32)
    quota: list[int] = []
    for share in (1 - times[1:] / times[:-1])[:-1]:
        quota.append(int((masked - sum(quota)) * share))
    return [*quota, masked - sum(quota)]


def sample_token(
    logits: Float[Tensor, "... vocabulary"], uniform: Float[Tensor, ...], temperature: float
) -> Int[Tensor, ...]:
    """Token ~ softmax(logits / T) by inverting the distribution function at `uniform` in [0, 1).

    T = 0 takes the most likely token. The same law as Gumbel-max with one uniform number instead of
    one per vocabulary entry. A token of probability 0 (the mask token, logit -inf) is never taken.
    """
    if temperature == 0:
        return logits.argmax(-1)
    cumulative = torch.softmax(logits.float() / temperature, dim=-1).cumsum(-1)
    total = cumulative[..., -1:]
    # rounding may leave u·total = total: the last token of positive probability is the bound
    last = (cumulative < total).sum(-1, keepdim=True)
    token = torch.searchsorted(cumulative, uniform[..., None] * total, right=True)
    return torch.minimum(token, last).squeeze(-1)


def token_probability(
    logits: Float[Tensor, "... vocabulary"], token: Int[Tensor, ...], uniform: Float[Tensor, ...]
) -> Float[Tensor, ...]:
    """Confidence = probability of the token, without temperature (LLaDA, low_confidence)."""
    return torch.softmax(logits.float(), dim=-1).gather(-1, token[..., None]).squeeze(-1)


@declares(takes_threshold=False)
def random_order(
    logits: Float[Tensor, "... vocabulary"], token: Int[Tensor, ...], uniform: Float[Tensor, ...]
) -> Float[Tensor, ...]:
    """Confidence = a uniform number: tokens are committed in random order (LLaDA, random)."""
    return uniform


@declares(takes_threshold=False)
def left_to_right(
    logits: Float[Tensor, "... vocabulary"], token: Int[Tensor, ...], uniform: Float[Tensor, ...]
) -> Float[Tensor, ...]:
    """The same confidence everywhere: ties go to the earlier position (SDAR, sequential)."""
    return torch.zeros_like(token, dtype=torch.float32)


@declares(takes_threshold=False)
def negative_entropy(
    logits: Float[Tensor, "... vocabulary"], token: Int[Tensor, ...], uniform: Float[Tensor, ...]
) -> Float[Tensor, ...]:
    """Confidence = sum p·log p in nats: the least uncertain position first (Dream, entropy)."""
    return -torch.special.entr(torch.softmax(logits.float(), dim=-1)).sum(-1)


def top_margin(
    logits: Float[Tensor, "... vocabulary"], token: Int[Tensor, ...], uniform: Float[Tensor, ...]
) -> Float[Tensor, ...]:
    """Confidence = p(best) - p(second best), at most p(best) (Dream, topk_margin)."""
    best = torch.softmax(logits.float(), dim=-1).topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def commit_mask(
    confidence: Float[Tensor, "sample position"],
    masked: Bool[Tensor, "sample position"],
    quota: int,
    threshold: float | None,
) -> Bool[Tensor, "sample position"]:
    """Masked positions to commit now: the `quota` most confident, and all above the threshold.

    Ties go to the earlier position. A quota above the number of masked positions takes them all.
    """
    confidence = confidence.masked_fill(~masked, float("-inf"))
    order = confidence.argsort(dim=-1, descending=True, stable=True)
    commit = order.argsort(dim=-1) < quota
    if threshold is not None:
        commit = commit | (confidence > threshold)
    return commit & masked
