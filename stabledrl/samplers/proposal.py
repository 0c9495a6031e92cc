"""What a pass proposes at the masked positions of a block."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stabledrl.functional.decoding import sample_token
from stabledrl.functional.reduce import token_log_probability

Confidence = Callable[[Tensor, Tensor, Tensor], Tensor]
Schedule = Callable[[int, int], list[int]]


def propose(
    logits: Float[Tensor, "masked vocabulary"],
    masked: Bool[Tensor, "row position"],
    uniform: Float[Tensor, "row two position"],
    temperature: float,
    confidence: Confidence,
    mask_token_id: int,
) -> tuple[
    Int[Tensor, "row position"], Float[Tensor, "row position"], Float[Tensor, "row position"]
]:
    """Token, confidence and log-probability at every masked position, 0 elsewhere.

    uniform: one number for the token, one for the order. The mask token is never proposed. The
    log-probability is that at the temperature, at 1 where that is 0 (nats).
    """
    logits[:, mask_token_id] = float("-inf")
    token = sample_token(logits, uniform[:, 0][masked], temperature)
    sure = confidence(logits, token, uniform[:, 1][masked]).float()
    log_token = token_log_probability(logits / (temperature or 1.0), token)
    return (
        torch.zeros_like(masked, dtype=token.dtype).masked_scatter(masked, token),
        sure.new_zeros(masked.shape).masked_scatter(masked, sure),
        log_token.new_zeros(masked.shape).masked_scatter(masked, log_token),
    )
