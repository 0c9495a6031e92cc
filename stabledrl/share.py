"""Which part of the work is this process's, and how the parts of all become the whole again.

Everything random is drawn for all samples, in order, and then cut: a sample has the same numbers
however many processes there are. Nothing here knows how processes talk to each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor


def alone(own: Tensor) -> list[Tensor]:
    """What every process has, where there is one."""
    return [own]


@dataclass(frozen=True)
class Share:
    """One of `processes` processes, number `rank`; groups are dealt out `batch` at a time.

    Batch k of every process, side by side, is then batch k of a single process that takes
    processes x batch groups at a time: the same optimiser steps.
    gather: a tensor -> that of every process in order of rank; their first axes may differ.
    in_step: policy -> a context in which processes may use it unequally often (sampling).
    """

    rank: int = 0
    processes: int = 1
    batch: int = 1
    gather: Callable[[Tensor], list[Tensor]] = alone
    in_step: Callable[[Any], AbstractContextManager[None]] = nullcontext

    @property
    def is_whole(self) -> bool:
        """Whether there is only one process."""
        return self.processes == 1

    def groups(self, count: int) -> slice | Int[Tensor, " own"]:
        """Which of `count` groups are this process's."""
        return slice(None) if self.is_whole else self._dealt(count, self.rank)

    def samples(self, count: int, size: int) -> slice | Int[Tensor, " own"]:
        """Which samples of `count` groups of `size` neighbours are."""
        if self.is_whole:
            return slice(None)
        first = self._dealt(count, self.rank)[:, None] * size
        return (first + torch.arange(size)).flatten()

    def members(self, items: Sequence[Any]) -> list[Any]:
        """Those of a list with one item per group."""
        if self.is_whole:
            return list(items)
        return [items[index] for index in self._dealt(len(items), self.rank).tolist()]

    def whole(self, own: Tensor, count: int) -> Tensor:
        """Rows of all `count` groups in their order, from each process's own rows."""
        if self.is_whole:
            return own
        order = self._order(count)
        together = torch.cat(self.gather(own))
        rows = len(together) // count  # of a group
        return together.view(count, rows, *own.shape[1:])[order].flatten(0, 1)

    def whole_values(self, own: Sequence[Any], count: int) -> list[Any]:
        """The same for lists of plain values (what JSON can say), as many for each group."""
        if self.is_whole:
            return list(own)
        text = torch.frombuffer(bytearray(json.dumps(list(own)).encode()), dtype=torch.uint8)
        parts = [json.loads(bytes(part.tolist())) for part in self.gather(text)]
        together = [value for part in parts for value in part]
        rows = len(together) // count
        first = [index * rows for index in self._order(count).tolist()]
        return [value for at in first for value in together[at : at + rows]]

    def neighbours(self, own: Tensor) -> Tensor:
        """Rows of all processes, those of rank 0 first: what a single process has in a batch."""
        return own if self.is_whole else torch.cat(self.gather(own))

    def among_neighbours(self, whole: Tensor) -> Tensor:
        """Of such rows this process's own."""
        size = len(whole) // self.processes
        return whole[self.rank * size : (self.rank + 1) * size]

    def _dealt(self, count: int, rank: int) -> Int[Tensor, " own"]:
        number = torch.arange(count)
        return number[number // self.batch % self.processes == rank]

    def _order(self, count: int) -> Int[Tensor, " group"]:
        """Where each group stands when the processes' groups follow each other."""
        return torch.cat([self._dealt(count, rank) for rank in range(self.processes)]).argsort()


WHOLE = Share()  # one process does everything
