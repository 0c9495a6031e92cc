"""Masks that are drawn block by block; blocks are numbered from 0 along a completion."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor


def block_sizes(
    block: Int[Tensor, "sample position"], counted: Bool[Tensor, "sample position"]
) -> Int[Tensor, "sample block"]:
    """Counted tokens of every block."""
    sizes = block.new_zeros(len(block), int(block.max()) + 1)
    return sizes.scatter_add(1, block, counted.long())


def place_in_blocks(
    counted: Bool[Tensor, "sample position"],
    block: Int[Tensor, "sample position"],
    count: Int[Tensor, "draw sample block"],
    noise: Float[Tensor, "draw sample position"],
) -> Bool[Tensor, "draw sample position"]:
    """Hide `count` of the counted tokens of each block, every subset of that size equally likely.

    Counted tokens are the first of a completion. Those with the smallest noise on [0, 1) of their
    block are taken.
    """
    order = (block + noise.double()).masked_fill(~counted, float("inf")).argsort(dim=-1)
    before = block_sizes(block, counted).cumsum(-1) - block_sizes(block, counted)
    rank = order.argsort(dim=-1) - before.gather(1, block)
    return (rank < count.gather(2, block.expand_as(noise))) & counted


def block_weight(
    hidden: Bool[Tensor, "draw sample position"],
    block: Int[Tensor, "sample position"],
    sizes: Int[Tensor, "sample block"],
) -> Float[Tensor, "draw sample position"]:
    """Weights n_b/(K·m_b) of hidden tokens: Σ weight·log p is Σ_b of means over the K draws.

    m_b is the number of hidden tokens of the block in a draw, n_b the size of the block.
    """
    numbers = block.expand_as(hidden)
    masked = sizes.new_zeros((len(hidden), *sizes.shape))
    masked = masked.scatter_add(2, numbers, hidden.long()).clamp(min=1)
    return hidden * (sizes / masked).gather(2, numbers) / len(hidden)


def per_block(
    value: Int[Tensor, "*group sample position"],
    block: Int[Tensor, "sample position"],
    reduce: Literal["amin", "amax"],
) -> Int[Tensor, "*group sample position"]:
    """The smallest or largest value of each position's block, at that position."""
    numbers = block.expand_as(value)
    blocks = value.new_zeros((*value.shape[:-1], int(block.max()) + 1))
    blocks.scatter_reduce_(-1, numbers, value, reduce, include_self=False)
    return blocks.gather(-1, numbers)
