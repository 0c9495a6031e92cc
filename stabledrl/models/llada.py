"""LLaDA (arXiv 2502.09992): a Llama under bidirectional attention, its parameters named anew."""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM

from stabledrl.models.checkpoint import (
    Checkpoint,
    Precision,
    load_backbone,
    load_tokenizer,
    open_checkpoint,
)
from stabledrl.models.facts import GivenIds, Published, token_ids
from stabledrl.policy import AdapterFacts, Policy

PREFIX = "model.transformer."
OUTSIDE = {
    "wte.weight": "model.embed_tokens.weight",
    "ln_f.weight": "model.norm.weight",
    "ff_out.weight": "lm_head.weight",
}
INSIDE = {
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
# what config.json may say of things that Llama has in one way only
SUPPORTED = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "bias_for_layer_norm": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "multi_query_attention": False,
}
END_TOKENS = ("<|endoftext|>", "<|eot_id|>")
PUBLISHED = (Published(126464, 126336, (126081, 126348), 126081),)  # LLaDA-8B, LLaDA-1.5


def load(
    path: str,
    dtype: Precision = "float32",
    chat_template: bool = True,
    mask_token_id: int | None = None,
    end_token_ids: list[int] | None = None,
    pad_token_id: int | None = None,
) -> Policy:
    """A policy from LLaDA's own files; `save_pretrained` writes them back.

    path: folder or hub id. Ids come from the checkpoint; those given fill in what it leaves out.
    Raises ValueError, naming path and remedy, for a checkpoint that is incomplete or foreign.
    """
    checkpoint = open_checkpoint(path, "llada")
    config = native_config(checkpoint)
    tokenizer = load_tokenizer(checkpoint, config.vocab_size, chat_template)
    given = GivenIds(mask_token_id, end_token_ids, pad_token_id)
    ids = token_ids(checkpoint, tokenizer, config.vocab_size, given, END_TOKENS, PUBLISHED)
    facts = AdapterFacts(
        ids.mask_token_id, ids.end_token_ids, ids.pad_token_id, chat_template=chat_template
    )
    backbone, original = load_backbone(checkpoint, LlamaForCausalLM, config, native_name, dtype)
    return Policy(backbone, tokenizer, facts, original)


def native_config(checkpoint: Checkpoint) -> LlamaConfig:
    """LLaDA's settings in Llama's words. ValueError for one that Llama cannot follow."""
    checkpoint.refuse_settings(SUPPORTED, LlamaForCausalLM)
    heads = checkpoint.setting("n_heads")
    return LlamaConfig(
        vocab_size=checkpoint.setting("embedding_size"),  # vocab_size may count fewer rows
        hidden_size=checkpoint.setting("d_model"),
        num_attention_heads=heads,
        num_key_value_heads=checkpoint.config.get("n_kv_heads") or heads,
        num_hidden_layers=checkpoint.setting("n_layers"),
        intermediate_size=checkpoint.setting("mlp_hidden_size"),
        rms_norm_eps=checkpoint.setting("rms_norm_eps"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": checkpoint.setting("rope_theta"),
        },
        max_position_embeddings=checkpoint.setting("max_sequence_length"),
        # tie_word_embeddings is a default of transformers' that LLaDA's code never reads
        tie_word_embeddings=bool(checkpoint.config.get("weight_tying")),
        bos_token_id=None,
        eos_token_id=checkpoint.config.get("eos_token_id"),
        pad_token_id=checkpoint.config.get("pad_token_id"),
    )


def native_name(name: str) -> str:
    """Llama's name of a parameter; a name that is not LLaDA's stays, and is then found unused."""
    own = name.removeprefix(PREFIX)
    if own in OUTSIDE:
        return OUTSIDE[own]
    if not own.startswith("blocks."):
        return name
    _, layer, part, *rest = [*own.split("."), ""]
    return ".".join(["model.layers", layer, INSIDE.get(part, part), *rest]).rstrip(".")
