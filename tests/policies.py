"""Policies for tests: tiny random ones, fakes whose logits are a function, the golden LLaDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from stabledrl.models import llada
from stabledrl.models.tiny import character_tokenizer, initialise_backbone
from stabledrl.policy import AdapterFacts, Policy
from stabledrl.types import Sequences

PAD, END, MASK = 0, 1, 2
VOCABULARY = 24
LLADA = Path(__file__).parent / "golden/llada"


def tiny_policy(seed: int = 0, shift_logits: bool = False) -> Policy:
    """One layer, 16 channels; weights large enough for sharp, context-dependent predictions."""
    backbone = initialise_backbone(16, 1, 2, 32, seed)
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.ndim == 2:
                parameter.mul_(20)
    return Policy(backbone, character_tokenizer(), AdapterFacts(MASK, (END,), PAD, shift_logits))


class FakeBackbone(PreTrainedModel):
    """A backbone whose logits are any function of the input ids."""

    config_class = PreTrainedConfig
    _supports_sdpa = True

    def __init__(self, logits: Callable[[Tensor], Tensor]) -> None:
        super().__init__(PreTrainedConfig())
        self.logits = logits
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.logits(input_ids) * self.scale)

    def get_output_embeddings(self) -> nn.Module:
        return nn.Identity()


def fake_policy(
    logits: Callable[[Tensor], Tensor],
    shift_logits: bool = False,
    end_token_ids: tuple[int, ...] = (END,),
) -> Policy:
    """A policy around any function of the input ids."""
    facts = AdapterFacts(MASK, end_token_ids, PAD, shift_logits)
    return Policy(FakeBackbone(logits), character_tokenizer(), facts)


def positional_policy(
    probabilities: list[dict[int, float]], prompt_length: int, **settings: object
) -> Policy:
    """The same distribution over tokens at each completion position, whatever the context."""
    table = torch.full((prompt_length + len(probabilities), VOCABULARY), -1e4)
    for position, tokens in enumerate(probabilities):
        for token, probability in tokens.items():
            table[prompt_length + position, token] = torch.tensor(probability).log()
    return fake_policy(lambda ids: table.expand(len(ids), -1, -1), **settings)  # type: ignore[arg-type]


def copy_oracle(sequences: Sequences, offset: int, shift_logits: bool) -> Policy:
    """Logits at position i are certain of the token at position i + offset."""
    whole = torch.cat([sequences.prompt_ids, sequences.completion_ids], dim=1)
    certain = 200.0 * nn.functional.one_hot(whole.roll(-offset, 1), VOCABULARY)
    return fake_policy(lambda ids: certain.repeat(len(ids) // len(certain), 1, 1), shift_logits)


def left_padded(rows: list[list[int]], fill: int = PAD) -> tuple[Tensor, Tensor]:
    """Ids and mask of prompts padded on the left."""
    width = max(map(len, rows))
    ids = torch.tensor([[fill] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    return ids, mask


def golden_llada(end_token_ids: tuple[int, ...] = (1,)) -> Policy:
    """The published tiny LLaDA; without end tokens it never stops, as published samplers."""
    policy = llada.load(str(LLADA), chat_template=False)
    policy.facts = replace(policy.facts, end_token_ids=end_token_ids)
    return policy
