"""Dream (arXiv 2508.15487) and DiffuCoder (arXiv 2506.20639): a Qwen2 with shifted logits."""

from __future__ import annotations

from transformers import Qwen2ForCausalLM

from stabledrl.models.checkpoint import Precision, open_checkpoint
from stabledrl.models.facts import GivenIds, Published
from stabledrl.models.qwen import assemble, native_config
from stabledrl.policy import Policy

CONTEXT = 2048  # tokens it was trained on; its config.json has the limit of Qwen2
PUBLISHED = (Published(152064, 151666, (151643, 151645), 151643),)


def load(
    path: str,
    dtype: Precision = "float32",
    chat_template: bool = True,
    mask_token_id: int | None = None,
    end_token_ids: list[int] | None = None,
    pad_token_id: int | None = None,
) -> Policy:
    """A policy from Dream's own files; `save_pretrained` writes them back.

    Position i is predicted by the logits of position i−1, the first position by its own.
    path: folder or hub id. Ids come from the checkpoint; those given fill in what it leaves out.
    Raises ValueError, naming path and remedy, for a checkpoint that is incomplete or foreign.
    """
    checkpoint = open_checkpoint(path, "Dream")
    return assemble(
        checkpoint,
        Qwen2ForCausalLM,
        native_config(checkpoint, Qwen2ForCausalLM),
        GivenIds(mask_token_id, end_token_ids, pad_token_id),
        PUBLISHED,
        dtype,
        chat_template,
        shift_logits=True,
        context_limit=CONTEXT,
    )
