"""Small Qwen3 and Qwen2.5 chat models made into masked-diffusion models (dllm-hub, `mdlm`).

Bidirectional with aligned logits, the mask token from the tokenizer: the smallest real chat models.
"""

from __future__ import annotations

from transformers import PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from stabledrl.models.checkpoint import Precision, open_checkpoint
from stabledrl.models.facts import GivenIds
from stabledrl.models.qwen import assemble, native_config
from stabledrl.policy import Policy


def load_qwen3(
    path: str,
    dtype: Precision = "float32",
    chat_template: bool = True,
    mask_token_id: int | None = None,
    end_token_ids: list[int] | None = None,
    pad_token_id: int | None = None,
) -> Policy:
    """A policy from files with Qwen3's names; `save_pretrained` writes them back.

    path: folder or hub id. Ids come from the checkpoint; those given fill in what it leaves out.
    Raises ValueError, naming path and remedy, for a checkpoint that is incomplete or foreign.
    """
    given = GivenIds(mask_token_id, end_token_ids, pad_token_id)
    return _load(
        path, Qwen3ForCausalLM, given, dtype, chat_template, ("head_dim", "attention_bias")
    )


def load_qwen2(
    path: str,
    dtype: Precision = "float32",
    chat_template: bool = True,
    mask_token_id: int | None = None,
    end_token_ids: list[int] | None = None,
    pad_token_id: int | None = None,
) -> Policy:
    """A policy from files with Qwen2's names, as `load_qwen3`."""
    given = GivenIds(mask_token_id, end_token_ids, pad_token_id)
    return _load(path, Qwen2ForCausalLM, given, dtype, chat_template, ())


def _load(
    path: str,
    native: type[PreTrainedModel],
    given: GivenIds,
    dtype: Precision,
    chat_template: bool,
    further: tuple[str, ...],
) -> Policy:
    checkpoint = open_checkpoint(path)
    for key in ("block_size", "bd_size"):
        if checkpoint.config.get(key) is not None:
            raise checkpoint.fault(
                f"its config.json has {key}={checkpoint.config[key]}: it writes block by block, "
                "but this is for models with bidirectional attention"
            )
    settings = {key: checkpoint.setting(key) for key in further}
    config = native_config(checkpoint, native, **settings)
    return assemble(checkpoint, native, config, given, (), dtype, chat_template)
