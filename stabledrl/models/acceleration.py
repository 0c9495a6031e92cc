"""Memory and speed of a policy's layers: activation checkpointing, torch.compile."""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import Any

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from stabledrl.errors import UserError
from stabledrl.policy import Policy

# of a layer's code that may be compiled: with and without gradient, adapter, inference mode, in a
# batch of one, …; beyond torch's own 8 it would silently go on uncompiled
VARIANTS = 64
COMPILERS = ("g++", "clang++", "c++")


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Acceleration:
    """How a model's layers are run; what they compute changes in the last digits at most.

    activation_checkpointing: keep the input of each layer only, and run it again in the backward
    pass (non-reentrant); nothing happens where no gradient is wanted. compile: torch.compile, each
    layer by itself and for sequences of any length; the names of the weights stay.
    Raises ValueError where there is no C++ compiler to compile with.
    """

    activation_checkpointing: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        """Told before any weight is read."""
        if self.compile and not has_compiler():
            raise ValueError("acceleration.compile=true needs a C++ compiler such as g++")

    def __call__(self, policy: Policy) -> Policy:
        """The policy, with its layers set; so are those of a frozen copy of it."""
        self.accelerate(policy.backbone)
        policy.accelerate = self.accelerate
        return policy

    def accelerate(self, backbone: PreTrainedModel) -> None:
        """Set the layers; UserError for a model of which transformers does not mark them."""
        kind = GradientCheckpointingLayer
        layers: list[Any] = [part for part in backbone.modules() if isinstance(part, kind)]
        if not layers and (self.activation_checkpointing or self.compile):
            raise UserError(
                f"acceleration: transformers does not say what a layer of "
                f"{type(backbone).__name__} is: set both of its keys to false"
            )
        if self.compile:
            torch._dynamo.config.recompile_limit = VARIANTS
        for layer in layers:
            if self.activation_checkpointing:
                # what activation_checkpointing_enable sets, whose name and defaults have changed
                layer.gradient_checkpointing = True
                layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
            if self.compile:
                layer.compile(dynamic=True)


def has_compiler() -> bool:
    """Whether torch.compile will find one: $CXX, or one of the usual names."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    return any(shutil.which(name) for name in names)
