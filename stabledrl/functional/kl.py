"""Estimators of KL(policy ‖ reference) from δ = L̂_ref − L̂_θ, in nats, elementwise.

J. Schulman, "Approximating KL divergence" (2020, joschu.net/blog/kl-approx.html). The samples are
the policy's, so E[−δ] is the divergence. All keep the gradient with respect to δ.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from stabledrl.functional.ratio import EXPONENT_LIMIT


def k1(delta: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """k1 = −δ: unbiased and noisy, of either sign. As a loss its expected gradient is zero."""
    return -delta


def k2(delta: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """k2 = δ²/2: biased and never negative; its gradient is that of the true divergence."""
    return delta.square() / 2


def k3(delta: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """k3 = exp(δ) − 1 − δ: unbiased and never negative. GRPO, arXiv 2402.03300, eq. 4.

    Above the exponent limit it goes on along its tangent: finite, and with the slope exp(limit) − 1
    that still pulls towards the reference. (With a bare clamp only −δ would be left of the
    gradient, which pushes away from it.) expm1 keeps the digits that exp(δ) − 1 loses near 0.
    """
    within = delta.clamp(max=EXPONENT_LIMIT)
    tangent = within.detach().exp() * (delta - within)
    return torch.expm1(within) + tangent - delta
