"""What a forward pass is told, what an attention is asked, and what all of them need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import Cache

from stabledrl.errors import UserError
from stabledrl.functional.reduce import token_log_probability
from stabledrl.types import Sequences


@dataclass(frozen=True)
class View:
    """What a forward pass of a packed row is told.

    position: of every column in the text. visible: the mask, for sdpa or for flex_attention.
    cache: keys and values of earlier columns, which the mask has in front.
    """

    position: Int[Tensor, "row column"]
    visible: Bool[Tensor, "row one query key"] | BlockMask
    cache: Cache | None = None


class Facts(Protocol):
    """What is needed of a model's facts."""

    @property
    def mask_token_id(self) -> int:
        """The absorbing token."""
        ...


@runtime_checkable
class Denoiser(Protocol):
    """What is needed of a policy."""

    @property
    def facts(self) -> Facts:
        """Its token ids."""
        ...

    def __call__(
        self, input_ids: Tensor, token_mask: Tensor, selection: Tensor, view: View | None = None
    ) -> Float[Tensor, "selected vocabulary"]:
        """Logits at the selected positions (`Policy.forward`)."""
        ...


@runtime_checkable
class Attention(Protocol):
    """One way of looking. of_blocks: whether the completion is written block by block."""

    of_blocks: ClassVar[bool]

    def blocks(
        self,
        prompt_mask: Bool[Tensor, "sample prompt_position"],
        completion_length: int,
        block_length: int,
    ) -> Int[Tensor, "sample position"] | None:
        """Number of the block of every prompt and completion token; None where there are none."""
        ...

    def log_likelihood(
        self, policy: Denoiser, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None
    ) -> Float[Tensor, "draw sample completion_position"]:
        """log p(true token | what is seen) at counted masked positions, 0 elsewhere (nats).

        mask: [draw, sample, completion_position], prompt_mask: of the prompt, or None.
        """
        ...


def true_token_log_probability(
    logits: Float[Tensor, "scored vocabulary"],
    ids: Int[Tensor, "*#shape"],
    scored: Bool[Tensor, "*shape"],
) -> Float[Tensor, "*shape"]:
    """Log-probabilities of the true tokens at the scored places, 0 elsewhere (nats)."""
    values = token_log_probability(logits, ids.expand_as(scored)[scored])
    return values.new_zeros(scored.shape).masked_scatter(scored, values)


def blocks_of(sequences: Sequences) -> Int[Tensor, "sample position"]:
    """Their blocks; ValueError for sequences that have none."""
    if sequences.block is None:
        raise ValueError("these sequences were made for a model without blocks (Policy.blocks)")
    return sequences.block


def refuse_hidden_prompt(prompt_mask: Tensor | None) -> None:
    """UserError where prompt tokens are hidden."""
    if prompt_mask is not None:
        raise UserError(
            "a block-causal model reads the prompt as it is: take a masking that hides none of it "
            "(masking=uniform), or estimator=block_elbo"
        )
