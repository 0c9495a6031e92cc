"""Several processes without processes: threads that hand their tensors to each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from stabledrl.share import Share

Result = TypeVar("Result")


def of_all(processes: int, work: Callable[[Share], Result], batch: int = 1) -> list[Result]:
    """What `work` gives each of the processes, in order of rank."""
    barrier = threading.Barrier(processes, timeout=60)
    laid_down: list[Tensor | None] = [None] * processes

    def gather_of(rank: int) -> Callable[[Tensor], list[Tensor]]:
        def gather(own: Tensor) -> list[Tensor]:
            laid_down[rank] = own.detach().clone()
            barrier.wait()
            found = [part for part in laid_down if part is not None]
            barrier.wait()  # nobody lays down the next before all have taken
            return found

        return gather

    def run(rank: int) -> Result:
        try:
            return work(Share(rank, processes, batch, gather_of(rank)))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(run, range(processes)))
