"""All blocks of a block-causal model in one pass: BD3-LM, StableDRL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as configured
from torch import Tensor

from stabledrl.attention.views import (
    Denoiser,
    View,
    blocks_of,
    refuse_hidden_prompt,
    true_token_log_probability,
)
from stabledrl.functional.attention import (
    Columns,
    Origin,
    block_numbers,
    dense,
    flexible,
    positions,
    staircase,
)
from stabledrl.types import Sequences


@configured(frozen=True, config=ConfigDict(extra="forbid"))
class Staircase:
    """All blocks in one pass: the text once clean, the completion noisy once for every draw.

    Exact: noisy block k is scored as in a pass of its own on [clean blocks < k, noisy block k]
    (`functional.attention.staircase`). The last clean block serves nobody and is left out; draws
    share the clean stream. origin: where the grid of blocks begins, for the sampler too. flex: let
    flex_attention skip what nobody sees, on a GPU; on a CPU it has no gradient.
    """

    of_blocks: ClassVar[bool] = True

    origin: Origin = "absolute"
    flex: bool = False

    def blocks(self, prompt_mask: Tensor, completion_length: int, block_length: int) -> Tensor:
        """As `Attention` says."""
        return block_numbers(prompt_mask, completion_length, block_length, self.origin)

    def log_likelihood(
        self, policy: Denoiser, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None
    ) -> Float[Tensor, "draw sample completion_position"]:
        """As `Attention` says; UserError where prompt tokens are hidden."""
        refuse_hidden_prompt(prompt_mask)
        packed = pack(sequences, mask, policy.facts.mask_token_id)
        shape, device = packed.ids.shape, packed.ids.device
        mask_of = flexible if self.flex else dense
        view = View(packed.position, mask_of(staircase(packed.columns), shape, device))
        logits = policy(packed.ids, packed.columns.real, packed.wanted, view)
        # the logits come sample by sample, their draws one after the other
        scored = (mask & sequences.completion_mask).transpose(0, 1)
        return true_token_log_probability(
            logits, sequences.completion_ids[:, None], scored
        ).transpose(0, 1)


@dataclass(frozen=True)
class Packed:
    """Clean stream and noisy copies of every sample in one row.

    wanted: columns whose token is to be predicted, draw by draw.
    """

    ids: Int[Tensor, "sample column"]
    position: Int[Tensor, "sample column"]
    columns: Columns
    wanted: Bool[Tensor, "sample column"]


def pack(
    sequences: Sequences, mask: Bool[Tensor, "draw sample completion_position"], mask_token_id: int
) -> Packed:
    """[prompt | clean completion | noisy copy | noisy copy | …], no longer than somebody reads it.

    A noisy copy begins with those last tokens of the prompt that share a block with the first of
    the completion, where any do, and ends with the last block that has counted tokens; the clean
    completion ends before that.
    """
    prompt_length, block = sequences.prompt_ids.shape[1], blocks_of(sequences)
    completion_block = block[:, prompt_length:]
    last = completion_block.masked_fill(~sequences.completion_mask, -(2**31)).amax(1, True)
    clean = int((completion_block < last).sum(1).max())
    noisy = int((completion_block <= last).sum(1).max())
    shared = sequences.prompt_mask & (block[:, :prompt_length] == completion_block[:, :1])
    tail = int(shared.sum(1).max())

    draws, samples = mask.shape[:2]
    scored = mask & sequences.completion_mask
    real = torch.cat([sequences.prompt_mask, torch.ones_like(sequences.completion_mask)], dim=1)
    position = positions(real)
    ids = torch.cat([sequences.prompt_ids, sequences.completion_ids], dim=1)
    kept = slice(prompt_length - tail, prompt_length + noisy)
    copies = ids[:, kept].repeat(draws, 1, 1)
    copies[..., tail:].masked_fill_(mask[..., :noisy], mask_token_id)
    present = torch.cat([shared[:, prompt_length - tail :], real[:, prompt_length : kept.stop]], 1)
    wanted = torch.zeros_like(copies, dtype=torch.bool)
    wanted[..., tail:] = scored[..., :noisy]

    def packed(whole: Tensor, copies: Tensor) -> Tensor:
        """The clean stream of `whole`, and behind it the copies [draw, sample, column]."""
        behind = copies.transpose(0, 1).reshape(samples, -1)
        return torch.cat([whole[:, : prompt_length + clean], behind], dim=1)

    stream = torch.arange(1, draws + 1, device=ids.device).repeat_interleave(tail + noisy)
    columns = Columns(
        packed(real, present.repeat(draws, 1, 1)),
        packed(block, block[:, kept].repeat(draws, 1, 1)),
        torch.cat([stream.new_zeros(prompt_length + clean), stream]),
    )
    return Packed(
        packed(ids, copies),
        packed(position, position[:, kept].repeat(draws, 1, 1)),
        columns,
        packed(torch.zeros_like(real), wanted),
    )
