"""Reading blocks behind finished text, which is read once and stays in a key-value cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from stabledrl.attention.views import View
from stabledrl.functional.attention import Columns, block_causal, dense
from stabledrl.policy import Policy


@dataclass(frozen=True)
class Layout:
    """The texts of a batch, prompt and completion, whatever their tokens are.

    position, block: of every column, meaningless where it is not real (padding).
    """

    real: Bool[Tensor, "sample column"]
    position: Int[Tensor, "sample column"]
    block: Int[Tensor, "sample column"]


@dataclass(frozen=True)
class Chosen:
    """Some columns of every row, as many of each: those that are not real fill up.

    column: where they are in the text.
    """

    column: Int[Tensor, "row place"]
    real: Bool[Tensor, "row place"]

    def __getitem__(self, rows: Tensor) -> Chosen:
        """Those of some rows."""
        return Chosen(self.column[rows], self.real[rows])


class CleanCache(DynamicCache):
    """Keys and values of clean text: of a pass, only its first `entering` columns stay.

    rows: those of its rows that the pass has, None for all of them; none enters but in all.
    """

    entering: int = 0
    rows: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Those in the cache and those of the pass: what the pass sees."""
        count = self.entering
        new = key_states[:, :, count:], value_states[:, :, count:]
        if count:
            entering = key_states[:, :, :count], value_states[:, :, :count]
            clean = super().update(*entering, layer_idx, *args, **kwargs)
        elif self.get_seq_length(layer_idx):
            layer: Any = self.layers[layer_idx]  # transformers does not say that it has tensors
            clean = layer.keys, layer.values
        else:
            return new
        if self.rows is not None:
            clean = clean[0][self.rows], clean[1][self.rows]
        return torch.cat([clean[0], new[0]], dim=-2), torch.cat([clean[1], new[1]], dim=-2)


@dataclass
class Reader:
    """A batch of texts being written, block by block; rows that are finished drop out.

    rows: samples that are still written, in the order of the cache. entering: finished columns that
    are not in the cache yet; they go in with the next pass, which costs no pass of their own.
    seen: the columns of the cache.
    """

    policy: Policy
    layout: Layout
    rows: Int[Tensor, " row"]
    entering: Chosen
    seen: Chosen
    cache: CleanCache = field(default_factory=CleanCache)

    def logits(
        self,
        ids: Int[Tensor, "sample column"],
        block: Chosen,
        wanted: Bool[Tensor, "row place"],
        chosen: Int[Tensor, " some"],
    ) -> Float[Tensor, "wanted vocabulary"]:
        """Logits at the wanted places of the block, which sees itself and the clean text before.

        ids: the texts. chosen: which of `rows` are read; all of them if anything enters.
        """
        entering, seen, block = self.entering[chosen], self.seen[chosen], block[chosen]
        samples, width = self.rows[chosen][:, None], entering.column.shape[1]
        fed = torch.cat([entering.column, block.column], dim=1)
        column = torch.cat([seen.column, fed], dim=1)
        real = torch.cat([seen.real, entering.real, block.real], dim=1)
        columns = Columns(real, self.layout.block[samples, column], column.new_zeros(len(real[0])))
        mask = dense(block_causal(columns), real.shape, real.device, queries=fed.shape[1])
        self.cache.entering = width
        self.cache.rows = chosen if len(chosen) < len(self.rows) else None
        logits = self.policy(
            ids[samples, fed],
            real[:, -fed.shape[1] :],
            torch.cat([torch.zeros_like(entering.real), wanted[chosen]], dim=1),
            View(self.layout.position[samples, fed], mask, self.cache),
        )
        if width:
            clean = slice(0, column.shape[1] - block.column.shape[1])
            self.seen = Chosen(column[:, clean], real[:, clean])
            self.entering = Chosen(entering.column[:, :0], entering.real[:, :0])
        return logits

    def turn(self, finished: Chosen, going_on: Bool[Tensor, " row"]) -> None:
        """On to the next block: the finished one enters, rows that are complete drop out."""
        kept = going_on.nonzero()[:, 0]
        self.entering = finished[kept]
        if len(kept) < len(self.rows):
            self.rows, self.seen = self.rows[kept], self.seen[kept]
            self.cache.batch_select_indices(kept)
