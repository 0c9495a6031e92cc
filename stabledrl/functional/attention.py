"""Which columns a denoiser may look at: one predicate per layout, read densely or by blocks.

A packed row has one clean stream and, with `staircase`, noisy copies behind it. Every column has a
block, counted along the text; columns that are not real (padding) are seen by nobody but
themselves, so that no softmax is empty. In the pictures a row is a query, a column a key, `#` is
seen; letters name blocks, capitals the clean stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import pad

Origin: TypeAlias = Literal["absolute", "response"]
# (row, query column, key column) -> whether the query sees the key; indices that broadcast
Predicate: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Columns:
    """Where the columns of packed rows stand.

    real: False at padding. block: number of the block, meaningless at padding. stream: 0 for the
    clean one, 1, 2, … for noisy copies.
    """

    real: Bool[Tensor, "row column"]
    block: Int[Tensor, "row column"]
    stream: Int[Tensor, " column"]


def positions(token_mask: Bool[Tensor, "row column"]) -> Int[Tensor, "row column"]:
    """Place of every token, counted from the first real one; 0 at padding left of it."""
    return (token_mask.cumsum(-1) - 1).clamp(min=0)


def block_numbers(
    prompt_mask: Bool[Tensor, "row prompt_column"],
    completion_length: int,
    block_length: int,
    origin: Origin,
) -> Int[Tensor, "row column"]:
    """Block of every token of left-padded prompts and the completions behind them.

    Formula: ⌊i/B⌋ with `absolute`, the grid in which SDAR (arXiv 2510.06303) decodes: the end of
    the prompt may share a block with the first answer tokens. ⌊(i − P)/B⌋ with `response`, in which
    TraceRL (arXiv 2509.06949) trains: the prompt's blocks are negative.
    """
    position = positions(pad(prompt_mask, (0, completion_length), value=True))
    first = prompt_mask.sum(-1, keepdim=True) if origin == "response" else 0
    return (position - first).div(block_length, rounding_mode="floor")


def bidirectional(columns: Columns) -> Predicate:
    """Every query sees every real key.

        A a b
    A   # # #
    a   # # #
    b   # # #
    """
    return lambda row, query, key: columns.real[row, key] | (query == key)


def block_causal(columns: Columns) -> Predicate:
    """A query sees the real keys of its own block and of those before it: b_q ≥ b_k.

        A A B B
    A   # # . .
    A   # # . .
    B   # # # #
    B   # # # #
    """
    real, block = columns.real, columns.block
    return lambda row, query, key: (
        ((block[row, query] >= block[row, key]) & real[row, key]) | (query == key)
    )


def staircase(columns: Columns) -> Predicate:
    """Clean blocks see themselves and those before, noisy ones themselves and clean ones before.

    Formula: (same stream and b_q = b_k) or (key clean and b_q > b_k). So noisy block k is scored as
    in a forward pass of its own on [clean blocks < k, noisy block k], and clean → noisy is never
    seen. BD3-LM (arXiv 2503.09573), StableDRL (arXiv 2603.06743).

        A B C b c
    A   # . . . .
    B   # # . . .
    C   # # # . .
    b   # . . # .
    c   # # . . #
    """
    real, block, stream = columns.real, columns.block, columns.stream
    return lambda row, query, key: (
        (
            ((stream[query] == stream[key]) & (block[row, query] == block[row, key]))
            | ((stream[key] == 0) & (block[row, query] > block[row, key]))
        )
        & real[row, key]
        | (query == key)
    )


def dense(
    predicate: Predicate, shape: torch.Size, device: torch.device, queries: int | None = None
) -> Bool[Tensor, "row one query key"]:
    """The predicate as a boolean mask for scaled_dot_product_attention; True is seen.

    shape: rows and columns. queries: how many of the last columns ask (the others are in a cache);
    None for all.
    """
    rows, columns = shape
    row, key = torch.arange(rows, device=device), torch.arange(columns, device=device)
    query = key[columns - (columns if queries is None else queries) :]
    return predicate(row[:, None, None], query[:, None], key)[:, None]


def flexible(predicate: Predicate, shape: torch.Size, device: torch.device) -> BlockMask:
    """The same predicate as flex_attention's mask of blocks, whose empty ones cost nothing."""
    rows, columns = shape
    return create_block_mask(
        lambda row, head, query, key: predicate(row, query, key),
        rows,
        None,
        columns,
        columns,
        device=device,
    )
