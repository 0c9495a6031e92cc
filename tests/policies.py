"""Policies for tests: tiny random ones, fakes whose logits are a function, the golden LLaDA."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

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
    """The published tiny LLaDA in transformers' Llama, by the rename of shared models.md."""
    facts = json.loads((LLADA / "config.json").read_text())
    config = LlamaConfig(
        vocab_size=facts["embedding_size"],
        hidden_size=facts["d_model"],
        num_attention_heads=facts["n_heads"],
        num_key_value_heads=facts["n_kv_heads"],
        num_hidden_layers=facts["n_layers"],
        intermediate_size=facts["mlp_hidden_size"],
        rms_norm_eps=facts["rms_norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["rope_theta"]},
        max_position_embeddings=facts["max_sequence_length"],
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=facts["eos_token_id"],
        pad_token_id=facts["pad_token_id"],
    )
    backbone = LlamaForCausalLM(config)
    weights = {
        _native(name): value for name, value in load_file(LLADA / "model.safetensors").items()
    }
    backbone.load_state_dict(weights)
    tokenizer = AutoTokenizer.from_pretrained(LLADA)
    return Policy(
        backbone.eval(),
        tokenizer,
        AdapterFacts(facts["mask_token_id"], end_token_ids, facts["pad_token_id"]),
    )


def _native(name: str) -> str:
    """Native name of a published parameter."""
    name = name.removeprefix("model.transformer.")
    outside = {
        "wte.weight": "model.embed_tokens.weight",
        "ln_f.weight": "model.norm.weight",
        "ff_out.weight": "lm_head.weight",
    }
    if name in outside:
        return outside[name]
    inside = {
        "attn_norm": "input_layernorm",
        "ff_norm": "post_attention_layernorm",
        "q_proj": "self_attn.q_proj",
        "k_proj": "self_attn.k_proj",
        "v_proj": "self_attn.v_proj",
        "attn_out": "self_attn.o_proj",
        "ff_proj": "mlp.gate_proj",
        "up_proj": "mlp.up_proj",
        "ff_out": "mlp.down_proj",
    }
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{inside[part]}.{kind}"
