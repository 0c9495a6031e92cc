"""A pass for every block: what the staircase has to equal."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
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
    block_causal,
    block_numbers,
    dense,
    positions,
)
from stabledrl.types import Sequences


@configured(frozen=True, config=ConfigDict(extra="forbid"))
class BlockSeparate:
    """One pass for every block, on the clean blocks before it: slow, and plain to see (tests).

    origin: as for `Staircase`.
    """

    of_blocks: ClassVar[bool] = True

    origin: Origin = "absolute"

    def blocks(self, prompt_mask: Tensor, completion_length: int, block_length: int) -> Tensor:
        """As `Attention` says."""
        return block_numbers(prompt_mask, completion_length, block_length, self.origin)

    def log_likelihood(
        self, policy: Denoiser, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None
    ) -> Float[Tensor, "draw sample completion_position"]:
        """As `Attention` says; UserError where prompt tokens are hidden."""
        refuse_hidden_prompt(prompt_mask)
        prompt_length = sequences.prompt_ids.shape[1]
        block = blocks_of(sequences)
        first = block[:, prompt_length]
        completion_block = block[:, prompt_length:]
        total = torch.zeros(mask.shape, device=mask.device)
        for number in range(int((completion_block[:, -1] - first).max()) + 1):
            current = completion_block == (first + number)[:, None]
            if (mask & current & sequences.completion_mask).any():
                total = total + self._of_block(policy, sequences, mask & current, current)
        return total

    def _of_block(
        self, policy: Denoiser, sequences: Sequences, mask: Tensor, current: Tensor
    ) -> Tensor:
        """Scores of one block of every sample: what stands behind it is not there."""
        scored = mask & sequences.completion_mask
        draw, sample = scored.any(-1).nonzero(as_tuple=True)
        rows, here = sequences[sample], current[sample]
        completion = rows.completion_ids.masked_fill(mask[draw, sample], policy.facts.mask_token_id)
        behind = here.flip(-1).cumsum(-1).flip(-1) == 0
        text = slice(None, rows.prompt_ids.shape[1] + int((~behind).sum(1).max()))
        real = torch.cat([rows.prompt_mask, ~behind], dim=1)[:, text]
        position = positions(real)
        columns = Columns(real, blocks_of(rows)[:, text], position.new_zeros(position.shape[1]))
        view = View(position, dense(block_causal(columns), real.shape, real.device))
        wanted = torch.cat([torch.zeros_like(rows.prompt_mask), scored[draw, sample]], dim=1)
        logits = policy(
            torch.cat([rows.prompt_ids, completion], dim=1)[:, text], real, wanted[:, text], view
        )
        return true_token_log_probability(logits, sequences.completion_ids, scored)
