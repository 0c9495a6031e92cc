"""Which positions a denoiser may look at."""

from __future__ import annotations

from jaxtyping import Bool, Int
from torch import Tensor


def bidirectional(
    token_mask: Bool[Tensor, "row position"],
) -> Bool[Tensor, "row one query key"]:
    """Every query sees every real token; padding is seen by nobody."""
    return token_mask[:, None, None, :].expand(-1, 1, token_mask.shape[1], -1)


def block_causal(
    token_mask: Bool[Tensor, "row position"],
    position: Int[Tensor, "row position"],
    block_length: int,
) -> Bool[Tensor, "row one query key"]:
    """A query sees the real tokens of its own block and of the blocks before it.

    Formula: ⌊query / b⌋ ≥ ⌊key / b⌋, positions counted from the first real token (SDAR, arXiv
    2510.06303).
    """
    block = position // block_length
    seen = block[:, :, None] >= block[:, None, :]
    return (seen & token_mask[:, None, :])[:, None]
