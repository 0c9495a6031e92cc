"""Checkpoints whose layers and parameter names are Qwen's: Dream, SDAR, Fast-dLLM v2, …"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from stabledrl.models.checkpoint import Checkpoint, Precision, load_backbone, load_tokenizer
from stabledrl.models.facts import GivenIds, Published, token_ids
from stabledrl.policy import AdapterFacts, Policy

SUPPORTED = {"hidden_act": "silu", "use_sliding_window": False, "rope_scaling": None}
END_TOKENS = ("<|endoftext|>", "<|im_end|>")


def native_config(
    checkpoint: Checkpoint, native: type[PreTrainedModel], **further: Any
) -> PreTrainedConfig:
    """A checkpoint's settings as a native configuration; `further` are those of one family.

    Raises ValueError for a setting that is missing, or that the native class cannot follow.
    """
    checkpoint.refuse_settings(SUPPORTED, native)
    kind: Any = native.config_class
    rope = checkpoint.config.get("rope_parameters") or {
        "rope_type": "default",
        "rope_theta": checkpoint.setting("rope_theta"),
    }
    config: PreTrainedConfig = kind(
        vocab_size=checkpoint.setting("vocab_size"),
        hidden_size=checkpoint.setting("hidden_size"),
        intermediate_size=checkpoint.setting("intermediate_size"),
        num_hidden_layers=checkpoint.setting("num_hidden_layers"),
        num_attention_heads=checkpoint.setting("num_attention_heads"),
        num_key_value_heads=checkpoint.setting("num_key_value_heads"),
        max_position_embeddings=checkpoint.setting("max_position_embeddings"),
        rms_norm_eps=checkpoint.setting("rms_norm_eps"),
        rope_parameters=rope,
        tie_word_embeddings=bool(checkpoint.config.get("tie_word_embeddings")),
        **further,
    )
    return config


def assemble(
    checkpoint: Checkpoint,
    native: type[PreTrainedModel],
    config: PreTrainedConfig,
    given: GivenIds,
    published: tuple[Published, ...],
    dtype: Precision,
    chat_template: bool,
    end_tokens: tuple[str, ...] = END_TOKENS,
    **facts: Any,
) -> Policy:
    """The policy of a checkpoint with Qwen's names; `facts` are those of `AdapterFacts`.

    end_tokens: texts of the tokens that end a completion beside those that its files name.
    """
    rows = config.vocab_size
    tokenizer = load_tokenizer(checkpoint, rows, chat_template)
    ids = token_ids(checkpoint, tokenizer, rows, given, end_tokens, published)
    adapter = AdapterFacts(
        ids.mask_token_id,
        ids.end_token_ids,
        ids.pad_token_id,
        chat_template=chat_template,
        **facts,
    )
    backbone, original = load_backbone(checkpoint, native, config, same_name, dtype)
    return Policy(backbone, tokenizer, adapter, original)


def stated_block_length(checkpoint: Checkpoint, key: str, given: int | None, published: str) -> int:
    """Tokens of a block: from config.json under `key`, or given as `model.block_length`.

    published: what to say where neither states it. ValueError then, and where they contradict.
    """
    stated: int | None = checkpoint.config.get(key)
    if stated is None and given is None:
        raise checkpoint.fault(
            f"its config.json has no {key}: give model.block_length=… (published: {published})"
        )
    if None not in (stated, given) and stated != given:
        raise checkpoint.fault(
            f"model.block_length={given}, but its config.json has {key}={stated}"
        )
    return stated or given or 0


def same_name(name: str) -> str:
    """Published and native names are alike."""
    return name
