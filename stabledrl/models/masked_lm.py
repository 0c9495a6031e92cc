"""Masked language models (BERT, RoBERTa, ModernBERT, …): bidirectional by themselves."""

from __future__ import annotations

import inspect
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from stabledrl.attention.views import View
from stabledrl.errors import UserError, one_line
from stabledrl.models.checkpoint import (
    Checkpoint,
    Precision,
    check_tokenizer,
    open_checkpoint,
    weight_files,
    weights_fault,
)
from stabledrl.models.facts import GivenIds, token_ids
from stabledrl.policy import AdapterFacts, Policy


class MaskedLanguagePolicy(Policy):
    """A `*ForMaskedLM` as a denoiser: it makes its own attention mask, its head is its own.

    The head may be several layers (a transform before the output layer), so logits are made at all
    positions and then selected.
    """

    @property
    def context_length(self) -> int | None:
        """As far as the learned positions reach."""
        reach: int = self.backbone.config.max_position_embeddings
        return reach - self._first_position()

    def forward(
        self,
        input_ids: Int[Tensor, "row position"],
        token_mask: Bool[Tensor, "row position"],
        selection: Bool[Tensor, "row position"],
        view: View | None = None,
    ) -> Float[Tensor, "selected vocabulary"]:
        """Logits at the selected positions, as `Policy.forward`, without a view: all see all.

        Raises UserError for a text longer than the learned positions reach.
        """
        assert view is None
        positions = (token_mask.cumsum(-1) - 1).clamp(min=0) + self._first_position()
        reach = self.backbone.config.max_position_embeddings
        wide = input_ids.shape[1] + self._first_position() > reach  # asks no GPU
        if wide and int(positions.max()) >= reach:
            raise UserError(
                f"a prompt and its completion have {int(token_mask.sum(-1).max())} tokens, more "
                f"than the model's {reach - self._first_position()}: lower sampler.length, or take "
                "shorter prompts"
            )
        logits: Tensor = self.backbone(
            input_ids=input_ids, attention_mask=token_mask.long(), position_ids=positions
        ).logits
        return logits[selection]

    def _first_position(self) -> int:
        """RoBERTa counts positions from behind its padding index, the others from 0."""
        embeddings = getattr(self.backbone.base_model, "embeddings", None)
        learned = getattr(embeddings, "position_embeddings", None)
        padding = getattr(learned, "padding_idx", None)
        return 0 if padding is None else padding + 1


def load(
    path: str,
    unused_weights: list[str],
    dtype: Precision = "float32",
    chat_template: bool = False,
    mask_token_id: int | None = None,
    end_token_ids: list[int] | None = None,
    pad_token_id: int | None = None,
) -> Policy:
    """A policy from a masked language model in transformers' own format (safetensors only).

    path: folder or hub id. unused_weights: beginnings of the names of weights that may stay unused,
    those of other heads. The end token is the tokenizer's, else its separator. Raises ValueError,
    naming path and remedy, for a checkpoint that is incomplete or foreign.
    """
    checkpoint = open_checkpoint(path)
    weight_files(checkpoint)
    if checkpoint.config.get("is_decoder"):
        raise checkpoint.fault("its config.json has is_decoder=True, which makes it causal")
    backbone, tokenizer = read(checkpoint, dtype, unused_weights)
    drop_nothing(backbone)
    native = type(backbone)
    if "position_ids" not in inspect.signature(native.forward).parameters:
        raise checkpoint.fault(
            f"{native.__name__} takes no position_ids, so padding on the left would move its text; "
            "take a BERT, RoBERTa or ModernBERT"
        )
    rows: int = backbone.config.vocab_size
    check_tokenizer(checkpoint, tokenizer, rows, chat_template)
    given = GivenIds(mask_token_id, end_token_ids, pad_token_id)
    ids = token_ids(checkpoint, tokenizer, rows, given, (), ())
    facts = AdapterFacts(
        ids.mask_token_id,
        ids.end_token_ids,
        ids.pad_token_id,
        chat_template=chat_template,
        lora_targets=projections(backbone.base_model),
    )
    return MaskedLanguagePolicy(backbone, tokenizer, facts)


def read(
    checkpoint: Checkpoint, dtype: Precision, unused_weights: list[str]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Backbone and tokenizer; ValueError for weights that are missing, unused or misshapen."""
    native = {"trust_remote_code": False}
    try:
        backbone, found = AutoModelForMaskedLM.from_pretrained(
            checkpoint.folder,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **native,
        )
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder, **native)
    except Exception as error:  # broken files make the readers fail in any way
        reason = one_line(error, 200)
        raise checkpoint.fault(
            f"transformers cannot load it as a masked language model: {reason}"
        ) from error
    faults: dict[str, set[Any]] = {
        "missing": found["missing_keys"] - {name for name, *_ in found["mismatched_keys"]},
        "unused": {n for n in found["unexpected_keys"] if not n.startswith(tuple(unused_weights))},
        "wrongly shaped": {name for name, *_ in found["mismatched_keys"]},
    }
    for kind, names in faults.items():
        if names:
            hint = " (or name them in model.unused_weights)" if kind == "unused" else ""
            raise checkpoint.fault(weights_fault(kind, names, type(backbone)) + hint)
    return backbone, tokenizer


def drop_nothing(backbone: nn.Module) -> None:
    """Turn off dropout, which BERT has in training: two likelihoods of one policy would differ.

    config.json keeps what it says.
    """
    for part in backbone.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name, value in vars(part).items():
            if "dropout" in name and isinstance(value, float):
                setattr(part, name, 0.0)


def projections(model: nn.Module) -> tuple[str, ...]:
    """Names of the linear layers of a model, each once: what an adapter goes on."""
    linear = (name for name, part in model.named_modules() if isinstance(part, nn.Linear))
    return tuple(sorted({name.rpartition(".")[2] for name in linear}))
