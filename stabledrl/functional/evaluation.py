"""Success rates and how sure one may be of them."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from annotated_types import Gt
from jaxtyping import Bool, Float
from torch import Tensor


def pass_at_k(
    solved: Bool[Tensor, "prompt sample"], k: Annotated[int, Gt(0)]
) -> Float[Tensor, " prompt"]:
    """Chance that one of k samples solves the prompt, without bias from n ≥ k samples.

    Formula: 1 − C(n−c, k)/C(n, k), c = solved samples. Codex, arXiv 2107.03374, eq. 1.
    Raises ValueError if there are fewer than k samples.
    """
    samples = solved.shape[1]
    if samples < k:
        raise ValueError(f"pass@{k} needs at least {k} samples per prompt, not {samples}")
    total = math.comb(samples, k)
    return torch.tensor([1 - math.comb(samples - int(c), k) / total for c in solved.sum(-1)])


def wilson_interval(
    rate: float, trials: Annotated[int | float, Gt(0)], z: float = 1.96
) -> tuple[float, float]:
    """95 % confidence interval of a success rate (Wilson, 1927).

    trials: independent ones; a fraction where they are an effective number.
    Formula: (p + z²/2n ± z·√(p(1−p)/n + z²/4n²)) / (1 + z²/n).
    """
    scale = 1 + z**2 / trials
    center = (rate + z**2 / (2 * trials)) / scale
    half = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2)) / scale
    return center - half, center + half


def mean_interval(
    values: Float[Tensor, " prompt"], samples: Annotated[int, Gt(0)], z: float = 1.96
) -> tuple[float, float]:
    """95 % confidence interval of the mean over prompts of chances in [0, 1], such as pass@k.

    Prompts are independent, the samples of one are not: Wilson's interval with the effective number
    of trials n* = p(1−p)/(s²/N), s² = Σ(x_i − p)²/N. For chances in [0, 1] s² ≤ p(1−p) (Bhatia and
    Davis, 2000), so N ≤ n*: chances of 0 and 1 alone give Wilson's interval of N trials. No more
    count than the N·samples completions, and where all chances are equal, with nothing to say how
    far prompts differ, each prompt counts once: no width is 0, not even where all or none are
    solved. Effective sample size: Kish (1965); in Wilson's interval: Dean and Pagano, J. Survey
    Stat. Methodol. 3 (2015) 484.
    """
    prompts = len(values)
    mean = float(values.double().mean().clamp(0, 1))
    variance = float((values.double() - mean).square().mean())
    if variance < 1e-12:  # equal but for rounding
        return wilson_interval(mean, prompts, z)
    effective = prompts * mean * (1 - mean) / variance
    return wilson_interval(mean, min(effective, prompts * samples), z)
