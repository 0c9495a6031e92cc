"""The processes of a run: who this one is, and what goes between them. torch.distributed is here.

Where there is one process nothing is sent, and every number stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from stabledrl.launch import is_first
from stabledrl.share import WHOLE, Share

__all__ = ["exchange_device", "gather", "is_first", "local", "merged_rows", "share", "total_norm"]


def share() -> Share:
    """This process's, once Lightning has brought the processes together; before, the whole."""
    if not (dist.is_available() and dist.is_initialized()):
        return WHOLE
    return Share(rank=dist.get_rank(), processes=dist.get_world_size(), gather=gather)


def gather(own: Tensor) -> list[Tensor]:
    """A tensor of every process, in order of rank; only their first axes may differ. No gradient.

    Every process has to call it, with tensors of one kind.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [own]
    device = exchange_device()
    sent = own.detach().to(device)
    sent = sent.to(torch.uint8) if own.dtype == torch.bool else sent
    sizes = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(sent)], device=device))
    rows = [int(size) for size in sizes]
    padded = sent.new_zeros((max(rows), *sent.shape[1:]))
    padded[: len(sent)] = sent
    received = [torch.empty_like(padded) for _ in rows]
    dist.all_gather(received, padded)
    return [
        part[:size].to(own.device, own.dtype) for part, size in zip(received, rows, strict=True)
    ]


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Norm of all gradients together, of sharded ones too; every process has to call it."""
    norm = torch.nn.utils.get_total_norm(list(gradients))
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that is here; any other as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def merged_rows(parts: Sequence[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The metrics of every batch of every process, as many of each and with the same names."""
    if share().is_whole:
        return list(parts)
    names = sorted(parts[0])
    own = torch.stack([torch.stack([part[name].double() for name in names]) for part in parts])
    return [dict(zip(names, row.unbind(), strict=True)) for rows in gather(own) for row in rows]


def exchange_device() -> torch.device:
    """Where tensors have to be to be sent: NCCL takes those of its GPU only."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
