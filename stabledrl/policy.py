"""The policy: a transformers backbone seen as a masked-diffusion denoiser.

Every open masked-diffusion checkpoint of interest is an ordinary decoder whose attention mask is
not causal, so one wrapper serves them all: it builds the mask, counts positions from the first
real token, shifts the logits where the checkpoint wants it, and applies the output layer only
where somebody reads it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stabledrl.attention.bidirectional import Bidirectional
from stabledrl.attention.staircase import Staircase
from stabledrl.attention.views import Attention, View
from stabledrl.errors import UserError
from stabledrl.functional.attention import (
    Columns,
    bidirectional,
    block_causal,
    dense,
    positions,
)
from stabledrl.types import Scorer, Sequences

# projections of a decoder layer, by their native names
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# writes backbone and tokenizer into a folder
Save = Callable[[PreTrainedModel, PreTrainedTokenizerBase, Path], None]


def save_native(
    backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """Weights (safetensors), configuration and tokenizer in transformers' own format."""
    backbone.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@dataclass(frozen=True)
class AdapterFacts:
    """What a checkpoint family needs to be told about itself.

    mask_token_id: the absorbing token of the diffusion.
    end_token_ids: any of these ends a completion.
    pad_token_id: fills prompts on the left and finished completions on the right.
    shift_logits: True where position i is predicted by the logits of position i-1 (Dream).
    block_length: of block-causal attention (SDAR); None where attention is bidirectional.
    chat_template: True where a prompt that is no conversation yet is put to the model as a user's
    message, in the tokenizer's own template with the assistant's header behind it.
    lora_targets: native names of the projections that an adapter goes on.
    context_limit: tokens that the family can read, where its files allow more (Dream).
    """

    mask_token_id: int
    end_token_ids: tuple[int, ...]
    pad_token_id: int
    shift_logits: bool = False
    block_length: int | None = None
    chat_template: bool = False
    lora_targets: tuple[str, ...] = PROJECTIONS
    context_limit: int | None = None

    @property
    def attention(self) -> str:
        """`bidirectional` or `block`."""
        return "block" if self.block_length else "bidirectional"


class Adapter(Protocol):
    """Parameters beside those of a backbone, trained in their place (`models.adapter`)."""

    def off(self, backbone: PreTrainedModel) -> AbstractContextManager[None]:
        """Within, the backbone is what it was without."""
        ...

    def merged(self, backbone: PreTrainedModel) -> PreTrainedModel:
        """The same as a backbone without adapter."""
        ...

    def save(self, backbone: PreTrainedModel, folder: Path) -> None:
        """Write the adapter alone."""
        ...


class Policy(nn.Module):
    """A denoiser: logits and log-probabilities of masked tokens.

    backbone: a native transformers class with an output layer (`LlamaForCausalLM`, …).
    tokenizer: the checkpoint's own tokenizer.
    facts: token ids, logit alignment and attention of the checkpoint family.
    save: writes it in the format it came in.
    adapter: what is trained in place of the backbone's own parameters, or None.
    accelerate: sets how the layers of a backbone are run, for copies of this one.
    """

    adapter: Adapter | None = None
    accelerate: Callable[[PreTrainedModel], None] | None = None

    def __init__(
        self,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        facts: AdapterFacts,
        save: Save = save_native,
    ) -> None:
        super().__init__()
        implementation = backbone.config._attn_implementation
        if implementation != "sdpa":  # eager would add the boolean mask, flash ignores it
            raise ValueError(f"the attention mask needs sdpa attention, not {implementation!r}")
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.facts = facts
        self.save = save
        self.attention: Attention = Staircase() if facts.block_length else Bidirectional()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.backbone.parameters()).device

    @property
    def context_length(self) -> int | None:
        """Tokens of prompt and completion that the model was made for; None where nobody says."""
        stated = getattr(self.backbone.config, "max_position_embeddings", None)
        return min(filter(None, (stated, self.facts.context_limit)), default=None)

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids and mask [row, position] of prompts, left-padded, on the policy's device.

        The texts are what the tokenizer sees: `rollout.rendered` applies a chat template.
        """
        encoded = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        return encoded["input_ids"].to(self.device), encoded["attention_mask"].to(self.device) > 0

    def chat_text(self, messages: Sequence[tuple[str, str]]) -> str:
        """A conversation of (role, content) in the checkpoint's chat template.

        UserError when the checkpoint has no template.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError("the model's tokenizer has no chat template: set task.chat=false")
        turns = [{"role": role, "content": content} for role, content in messages]
        return str(
            self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        )

    def decode(self, ids: Tensor, counted: Tensor) -> list[str]:
        """Text of completions up to, not including, the first end token."""
        kept = counted & ~torch.isin(ids, ids.new_tensor(self.facts.end_token_ids))
        rows = [row[keep].tolist() for row, keep in zip(ids.cpu(), kept.cpu(), strict=True)]
        return self.tokenizer.batch_decode(rows, skip_special_tokens=False)

    def forward(
        self,
        input_ids: Int[Tensor, "row position"],
        token_mask: Bool[Tensor, "row position"],
        selection: Bool[Tensor, "row position"],
        view: View | None = None,
    ) -> Float[Tensor, "selected vocabulary"]:
        """Logits at the selected positions, in row-major order.

        token_mask: False at padding, which no query sees and which moves nothing.
        selection: positions whose token is to be predicted.
        view: what every position sees; None for the model's own way of reading a plain text.
        """
        if view is None:
            view = self._plain_view(token_mask)
        self.backbone.config._attn_implementation = (
            "flex_attention" if isinstance(view.visible, BlockMask) else "sdpa"
        )
        hidden = self.backbone.base_model(
            input_ids=input_ids,
            attention_mask=view.visible,
            position_ids=view.position,
            cache=view.cache,
            use_cache=view.cache is not None,
        ).last_hidden_state
        if self.facts.shift_logits:
            shifted = torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)
            # the first real token keeps its own: left of it there is at most padding
            hidden = torch.where((view.position == 0)[..., None], hidden, shifted)
        return self.backbone.get_output_embeddings()(hidden[selection])

    def _plain_view(self, token_mask: Tensor) -> View:
        position, block_length = positions(token_mask), self.facts.block_length
        columns = Columns(
            token_mask, position // (block_length or 1), position.new_zeros(position.shape[1])
        )
        seen = block_causal(columns) if block_length else bidirectional(columns)
        return View(position, dense(seen, token_mask.shape, token_mask.device))

    def look(self, attention: Attention) -> Policy:
        """This policy, scoring by that attention; UserError if it is for other models."""
        if attention.of_blocks != bool(self.facts.block_length):
            raise UserError(
                "attention: the model writes block by block, take attention=staircase"
                if self.facts.block_length
                else "attention: the model does not write block by block, take "
                "attention=bidirectional"
            )
        self.attention = attention
        return self

    def blocks(
        self,
        prompt_mask: Bool[Tensor, "sample prompt_position"],
        completion_length: int,
        block_length: int | None = None,
    ) -> Int[Tensor, "sample position"] | None:
        """Number of the block of every prompt and completion token; None for a model without.

        block_length: None for the model's own.
        """
        tokens = block_length or self.facts.block_length or 1
        return self.attention.blocks(prompt_mask, completion_length, tokens)

    def log_likelihood(
        self,
        sequences: Sequences,
        mask: Bool[Tensor, "*draw sample completion_position"],
        prompt_mask: Bool[Tensor, "*draw sample prompt_position"] | None = None,
    ) -> Float[Tensor, "*draw sample completion_position"]:
        """log p(true token | corrupted sequence) at counted masked positions, 0 elsewhere (nats).

        mask: completion tokens replaced by the mask token, one mask for each sample or one for each
        draw of each; tokens after the end token belong in it unless a decoding is replayed that saw
        them. prompt_mask: prompt tokens replaced as well (d1's prompt masking), or None.
        """
        if mask.ndim == 2:
            prompt = None if prompt_mask is None else prompt_mask[None]
            return self.attention.log_likelihood(self, sequences, mask[None], prompt)[0]
        return self.attention.log_likelihood(self, sequences, mask, prompt_mask)

    def frozen(self) -> Scorer:
        """The policy as it is now, however it is trained.

        A copy, or with an adapter, which does nothing yet, no copy: the same weights without it.
        """
        if self.adapter is not None:
            return WithoutAdapter(self)
        frozen = copy.deepcopy(self).requires_grad_(False)
        if self.accelerate is not None:
            self.accelerate(frozen.backbone)
        return frozen

    def save_pretrained(self, folder: Path) -> None:
        """Write weights (safetensors), configuration and tokenizer, in the format they came in.

        An adapter is merged into the weights that are written, and stays as it is here.
        """
        backbone = self.backbone if self.adapter is None else self.adapter.merged(self.backbone)
        self.save(backbone, self.tokenizer, folder)

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter alone, in peft's format; nothing if there is none."""
        if self.adapter is not None:
            self.adapter.save(self.backbone, folder)


@dataclass(frozen=True)
class WithoutAdapter:
    """A policy's own weights without its adapter: the policy that training started from."""

    policy: Policy

    @torch.no_grad()
    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Float[Tensor, "*draw sample completion_position"]:
        """As `Policy.log_likelihood`, without gradient."""
        assert self.policy.adapter is not None
        with self.policy.adapter.off(self.policy.backbone):
            return self.policy.log_likelihood(sequences, mask, prompt_mask)
