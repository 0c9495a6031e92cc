"""Reading a text block by block, with the keys and values of finished blocks kept."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from stabledrl.attention.views import View
from stabledrl.functional.attention import Columns, block_causal, dense, positions
from stabledrl.policy import Policy


class FinishedBlocks(DynamicCache):
    """Keys and values of what will not change: of a pass's columns the first `keep` are added."""

    keep = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of all columns, the pass's own behind the kept ones."""
        if self.keep:
            first = slice(None, self.keep)
            super().update(key_states[..., first, :], value_states[..., first, :], layer_idx)
        layer: Any = self.layers[layer_idx]  # transformers does not say that they are tensors
        rest = slice(self.keep, None)
        return (
            torch.cat([layer.keys, key_states[..., rest, :]], dim=2),
            torch.cat([layer.values, value_states[..., rest, :]], dim=2),
        )


class BlockReader:
    """Ragged rows, of which each is read one block at a time, all of them their n-th block.

    Every block of every row has `block_length` slots; those that its text does not fill are absent.
    A prompt's last tokens stand in the slots of the block that they share with the completion.

    rows: those that are still written. blocks: of the longest. rows_read: passes so far, one for
    each row; that over the prompts included.
    """

    def __init__(
        self,
        policy: Policy,
        ids: Int[Tensor, "row column"],
        prompt_mask: Bool[Tensor, "row prompt_column"],
        block_length: int,
    ) -> None:
        """Reads the prompts. ids: prompts and completions, which the caller writes into."""
        length = ids.shape[1] - prompt_mask.shape[1]
        block = policy.blocks(prompt_mask, length)
        assert block is not None
        self._policy, self._ids = policy, ids
        self._prompt_length, self._block_length = prompt_mask.shape[1], block_length
        real = pad(prompt_mask, (0, length), value=True)
        block = block - block[:, self._prompt_length, None]  # 0 is the first to be written
        self.rows = torch.arange(len(ids), device=ids.device)
        self.blocks = int(block.max()) + 1
        self._column, self._present, self._block = slots(
            block, real, self._prompt_length, block_length
        )
        self._position = positions(real).gather(1, self._column)
        self._cache = FinishedBlocks()
        self._cached = 0
        self.rows_read = 0
        self._read(self._prompt_length, self._prompt_length, torch.zeros_like(prompt_mask))

    def masked(self, block: int) -> Bool[Tensor, "row slot"]:
        """Slots of the block that wait for a token."""
        at = self._at(block)
        masked = self._tokens(at) == self._policy.facts.mask_token_id
        own = self._column[self.rows, at] >= self._prompt_length  # a prompt may have mask tokens
        return masked & own & self._present[self.rows, at]

    def columns(self, block: int) -> Int[Tensor, "row slot"]:
        """Where the slots of the block stand in the text."""
        return self._column[self.rows, self._at(block)]

    def logits(
        self, block: int, masked: Bool[Tensor, "row slot"]
    ) -> Float[Tensor, "masked vocabulary"]:
        """What the model says of the masked slots; a finished block before it is kept now."""
        end = self._at(block).stop
        before = end - self._block_length
        selection = pad(masked, (before - self._cached, 0), value=False)
        return self._read(end, before, selection)

    def finish(self, block: int) -> None:
        """Drop the rows that have an end token in the block, or no other block behind it."""
        ends = self._policy.facts.end_token_ids
        columns, present = self.columns(block), self._present[self.rows, self._at(block)]
        ended = torch.isin(self._tokens(self._at(block)), columns.new_tensor(ends))
        ended &= present & (columns >= self._prompt_length)
        more = block + 1 < self.blocks
        going = ~ended.any(-1)
        if more:
            going &= self._present[self.rows, self._at(block + 1)].any(-1)
        if not going.all():
            self.rows = self.rows[going]
            self._cache.batch_select_indices(going.nonzero()[:, 0])

    def _at(self, block: int) -> slice:
        first = self._prompt_length + block * self._block_length
        return slice(first, first + self._block_length)

    def _tokens(self, at: slice) -> Int[Tensor, "row slot"]:
        return self._ids[self.rows].gather(1, self._column[self.rows, at])

    def _read(self, end: int, keep_until: int, selection: Tensor) -> Tensor:
        """Logits of a pass over all columns that are not cached, up to `end`."""
        at = slice(self._cached, end)
        self._cache.keep = keep_until - self._cached
        columns = Columns(
            self._present[self.rows, :end],
            self._block[self.rows, :end],
            self._column.new_zeros(end),
        )
        shape, device = columns.real.shape, columns.real.device
        visible = dense(block_causal(columns), shape, device, queries=end - self._cached)
        view = View(self._position[self.rows, at], visible, self._cache)
        logits = self._policy(self._tokens(at), columns.real[:, at], selection, view)
        self._cached = keep_until
        self.rows_read += len(self.rows)
        return logits


def slots(
    block: Int[Tensor, "row column"],
    real: Bool[Tensor, "row column"],
    prompt_length: int,
    block_length: int,
) -> tuple[Int[Tensor, "row slot"], Bool[Tensor, "row slot"], Int[Tensor, "row slot"]]:
    """The prompt's columns and behind them `block_length` slots for each block from 0 on.

    Of each its column in the text, whether there is one, and its block. Tokens of a prompt that are
    in block 0 are in its slots, not in the prompt's.
    """
    place = torch.arange(block.shape[1], device=block.device).expand_as(block)
    prompt = slice(None, prompt_length)
    column, number = [place[:, prompt]], [block[:, prompt]]
    present = [real[:, prompt] & (block[:, prompt] < 0)]
    slot = torch.arange(block_length, device=block.device)
    for index in range(int(block.max()) + 1):
        own = (block == index) & real
        first = own.long().argmax(1, keepdim=True)
        column.append((first + slot).clamp(max=block.shape[1] - 1))
        present.append(slot < own.sum(1, keepdim=True))
        number.append(torch.full_like(column[-1], index))
    return torch.cat(column, 1), torch.cat(present, 1), torch.cat(number, 1)
