"""Fast-dLLM v2 (arXiv 2509.26328): a Qwen2 with block-causal attention and shifted logits.

Loading only: the first token of a block is predicted by the block before, in ways that are not
published as logits. The rules refuse every job that samples or scores, before a weight is read.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt
from transformers import Qwen2ForCausalLM

from stabledrl.declarations import declares
from stabledrl.models.checkpoint import Precision, open_checkpoint
from stabledrl.models.facts import GivenIds, Published
from stabledrl.models.qwen import assemble, native_config, stated_block_length
from stabledrl.policy import Policy

# 1.5B and 7B, whose embeddings have as many rows as those of the Qwen2.5 they are made of
PUBLISHED = tuple(Published(rows, 151665, (151645,), None) for rows in (151936, 152064))
END_TOKENS = ("<|im_end|>",)


@declares(block_causal=True, decodable=False)
def load(
    path: str,
    dtype: Precision = "float32",
    chat_template: bool = True,
    block_length: Annotated[int, Gt(0)] | None = None,
    mask_token_id: int | None = None,
    end_token_ids: list[int] | None = None,
    pad_token_id: int | None = None,
) -> Policy:
    """A policy from Fast-dLLM v2's own files; `save_pretrained` writes them back.

    Position i is predicted by the logits of position i−1, so the first of a block by the block
    before. path: folder or hub id. block_length: of the block-causal attention, grid from position
    0; None takes the bd_size of config.json. Ids come from the checkpoint; those given fill in what
    it leaves out. Raises ValueError, naming path and remedy, for a checkpoint that is incomplete or
    foreign, or whose block length nobody states.
    """
    checkpoint = open_checkpoint(path, "Fast_dLLM_Qwen")
    return assemble(
        checkpoint,
        Qwen2ForCausalLM,
        native_config(checkpoint, Qwen2ForCausalLM),
        GivenIds(mask_token_id, end_token_ids, pad_token_id),
        PUBLISHED,
        dtype,
        chat_template,
        end_tokens=END_TOKENS,
        shift_logits=True,
        block_length=stated_block_length(checkpoint, "bd_size", block_length, "32"),
    )
