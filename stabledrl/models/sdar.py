"""SDAR (arXiv 2510.06303) and TraDo (arXiv 2509.06949): a Qwen3 with block-causal attention."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt
from transformers import Qwen3ForCausalLM

from stabledrl.declarations import declares
from stabledrl.models.checkpoint import Precision, open_checkpoint
from stabledrl.models.facts import GivenIds, Published
from stabledrl.models.qwen import assemble, native_config, stated_block_length
from stabledrl.policy import Policy

PUBLISHED = (Published(151936, 151669, (151643, 151645), 151643),)


@declares(block_causal=True)
def load(
    path: str,
    dtype: Precision = "float32",
    chat_template: bool = True,
    block_length: Annotated[int, Gt(0)] | None = None,
    mask_token_id: int | None = None,
    end_token_ids: list[int] | None = None,
    pad_token_id: int | None = None,
) -> Policy:
    """A policy from SDAR's own files; `save_pretrained` writes them back.

    path: folder or hub id. block_length: of the block-causal attention, grid from position 0; None
    takes the block_size of config.json. Ids come from the checkpoint; those given fill in what it
    leaves out. Raises ValueError, naming path and remedy, for a checkpoint that is incomplete or
    foreign, or whose block length nobody states.
    """
    checkpoint = open_checkpoint(path, "sdar")
    block = stated_block_length(
        checkpoint, "block_size", block_length, "4, or the N of a name that ends in -bN"
    )
    config = native_config(
        checkpoint,
        Qwen3ForCausalLM,
        head_dim=checkpoint.setting("head_dim"),
        attention_bias=bool(checkpoint.config.get("attention_bias")),
    )
    return assemble(
        checkpoint,
        Qwen3ForCausalLM,
        config,
        GivenIds(mask_token_id, end_token_ids, pad_token_id),
        PUBLISHED,
        dtype,
        chat_template,
        block_length=block,
    )
