"""What of a policy is trained: everything, or a low-rank adapter on its projections (LoRA)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Lt, MinLen
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from stabledrl.declarations import declares
from stabledrl.errors import UserError, did_you_mean, listing
from stabledrl.policy import Policy

NAME = "default"  # of the one adapter, as peft calls it


def none(policy: Policy) -> Policy:
    """Every parameter is trained."""
    return policy


@declares(needs_training=True)
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Lora:
    """W·x + (alpha/rank)·B·A·x on linear layers, of which only A and B are trained (2106.09685).

    B begins at 0, so the policy is at first what it is without; the first update moves B alone.
    A and B are float32 whatever the model's precision: steps of theirs would vanish in bfloat16.

    rank: rows of A. alpha: scale, over the rank. dropout: of the adapter's input while training.
    targets: last parts of the names of linear layers; None takes the model family's projections.
    seed: of A. Raises ValueError where peft is not installed.
    """

    rank: Annotated[int, Gt(0)]
    alpha: Annotated[float, Gt(0)]
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    targets: Annotated[list[str], MinLen(1)] | None = None
    seed: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        """Told before any weight is read."""
        if find_spec("peft") is None:
            raise ValueError("adapter=lora needs peft; pip install 'stabledrl[lora]'")

    def __call__(self, policy: Policy) -> Policy:
        """The policy with an adapter on it; UserError for targets that it has not."""
        from peft import LoraConfig, inject_adapter_in_model

        targets = list(policy.facts.lora_targets if self.targets is None else self.targets)
        for fault in target_faults(policy.backbone, targets):
            raise UserError(f"adapter.targets: {fault}")
        settings = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,  # type: ignore[arg-type]  # a float does as well
            lora_dropout=self.dropout,
            target_modules=targets,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            inject_adapter_in_model(settings, policy.backbone, NAME)
        for parameter in policy.backbone.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        policy.adapter = LowRank()
        return policy


class LowRank:
    """What can be done with a LoRA adapter that sits in a backbone (`policy.Adapter`)."""

    @contextmanager
    def off(self, backbone: PreTrainedModel) -> Iterator[None]:
        """Within, the backbone computes what it did without the adapter, bit for bit."""
        layers = [layer for _, layer in adapted(backbone)]
        for layer in layers:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def merged(self, backbone: PreTrainedModel) -> PreTrainedModel:
        """A backbone of its own with W + (alpha/rank)·B·A for W, in W's precision, on the CPU.

        It shares everything else with the given one, in which nothing changes.
        """
        shared = {id(item): item for item in (*backbone.parameters(), *backbone.buffers())}
        plain = copy.deepcopy(backbone, shared)
        for name, layer in list(adapted(plain)):
            linear = layer.get_base_layer()
            with torch.no_grad():
                weight = linear.weight.float() + layer.get_delta_weight(NAME).float()
            linear.weight = nn.Parameter(weight.to(linear.weight.dtype).cpu(), requires_grad=False)
            plain.set_submodule(name, linear)
        del plain.peft_config
        return plain

    def save(self, backbone: PreTrainedModel, folder: Path) -> None:
        """adapter_config.json and adapter_model.safetensors, as `PeftModel.from_pretrained` reads.

        The names are those of transformers' own class of the model.
        """
        from peft import get_peft_model_state_dict

        weights = get_peft_model_state_dict(backbone, adapter_name=NAME)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {f"base_model.model.{key}": it.cpu().contiguous() for key, it in weights.items()},
            folder / "adapter_model.safetensors",
            metadata={"format": "pt"},
        )
        settings: Any = backbone.peft_config[NAME]
        replace(settings, inference_mode=True).save_pretrained(folder)


def adapted(backbone: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    """Names of the layers that carry an adapter, and the layers (peft's `LoraLayer`)."""
    from peft.tuners.lora import LoraLayer

    for name, part in backbone.named_modules():
        if isinstance(part, LoraLayer):
            yield name, part


def target_faults(backbone: PreTrainedModel, targets: list[str]) -> Iterator[str]:
    """Targets that are no linear layer, or one whose weight is another layer's too."""
    layers = {n: part for n, part in backbone.named_modules() if isinstance(part, nn.Linear)}
    known = {name.rpartition(".")[2] for name in layers}
    uses: dict[int, int] = {}
    for _, parameter in backbone.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for target in targets:
        found = [part for name, part in layers.items() if f".{name}".endswith(f".{target}")]
        if not found:
            hint = did_you_mean(target, known) or f" (there are {listing(known)})"
            yield f"'{target}' is no linear layer of {type(backbone).__name__}{hint}"
        elif any(uses[id(part.weight)] > 1 for part in found):
            yield f"'{target}' shares its weight with another layer, into which it cannot be merged"
