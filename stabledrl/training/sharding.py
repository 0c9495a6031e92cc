"""Weights, gradients and optimiser states divided over the processes: FSDP2 (`fully_shard`).

The policy is the root, its decoder layers are units of their own; so the output layer is called
inside the root's forward, which has gathered it. Every forward pass is an exchange in which all
processes take part: who has finished earlier goes along until all have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from stabledrl.policy import Policy
from stabledrl.training.processes import exchange_device


class Sharded(ModelParallelStrategy):
    """Lightning's strategy for modules that shard themselves, over all processes of all machines.

    Checkpoints are one file, as with every other strategy, so that a run may go on with another.
    """

    shards = True

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        """All processes hold different data."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()


def shard(policy: Policy, mesh: DeviceMesh) -> None:
    """Divide a policy's weights over the processes of a mesh, once."""
    if isinstance(policy, FSDPModule):
        return
    for layer in decoder_layers(policy):
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh)
    policy.register_forward_pre_hook(_announce, prepend=True)  # before weights are gathered


def decoder_layers(policy: Policy) -> list[nn.Module]:
    """The longest list of modules in the backbone: its layers, whatever the family calls them."""
    lists = [module for module in policy.backbone.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len, default=[]))


_in_step: list[nn.Module] = []  # sharded policies whose forward passes are announced


@contextmanager
def in_step(policy: nn.Module) -> Iterator[None]:
    """Processes may make different numbers of forward passes of a sharded policy in here.

    Each pass is announced; at the end a process goes along with passes over nothing until all are
    here. Without gradients; does nothing for a policy that is not sharded.
    """
    if not isinstance(policy, FSDPModule):
        yield
        return
    _in_step.append(policy)
    try:
        yield
    finally:
        _in_step.remove(policy)
    with torch.no_grad():
        while _announced(0):
            policy(*_nothing(policy))


def _announce(policy: nn.Module, _: Any) -> None:
    if policy in _in_step:
        _announced(1)


def _announced(passes: int) -> bool:
    """Whether any process makes a pass now."""
    count = torch.tensor(passes, device=exchange_device())
    dist.all_reduce(count)
    return bool(count > 0)


def _nothing(policy: Any) -> tuple[Tensor, Tensor, Tensor]:
    """One row of one token, of which nobody asks anything."""
    ids = torch.full((1, 1), policy.facts.pad_token_id, device=exchange_device())
    return ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)


def gather_weights(policy: Policy, keep: bool) -> None:
    """Put whole weights, on the CPU, in the place of sharded ones, to be saved; no training after.

    keep: whether this process wants them. All have to call it.
    """
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # the root keeps what its last forward pass gathered
    whole: dict[nn.Parameter, nn.Parameter] = {}  # one that several layers share stays one
    for module in policy.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            weights = parameter.detach()
            if not isinstance(weights, DTensor):
                continue
            if parameter not in whole:
                found = weights.full_tensor()  # an exchange: all make it
                whole[parameter] = nn.Parameter(found.cpu() if keep else torch.empty(0), False)
            if keep:
                module._parameters[name] = whole[parameter]
