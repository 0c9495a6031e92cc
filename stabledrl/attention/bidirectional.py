"""Every token sees every other one."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as configured
from torch import Tensor

from stabledrl.attention.views import (
    Denoiser,
    true_token_log_probability,
)
from stabledrl.types import Sequences


@configured(frozen=True, config=ConfigDict(extra="forbid"))
class Bidirectional:
    """Every token sees every other one: one row for each draw of a sample."""

    of_blocks: ClassVar[bool] = False

    def blocks(self, prompt_mask: Tensor, completion_length: int, block_length: int) -> None:
        """There are none."""
        return None

    def log_likelihood(
        self, policy: Denoiser, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None
    ) -> Float[Tensor, "draw sample completion_position"]:
        """As `Attention` says. A draw that scores nothing of a sample costs nothing."""
        scored = mask & sequences.completion_mask
        draw, sample = scored.any(-1).nonzero(as_tuple=True)
        facts, rows = policy.facts, sequences[sample]
        completion = rows.completion_ids.masked_fill(mask[draw, sample], facts.mask_token_id)
        prompt = rows.prompt_ids
        if prompt_mask is not None:
            hidden = prompt_mask[draw, sample] & rows.prompt_mask
            prompt = prompt.masked_fill(hidden, facts.mask_token_id)
        wanted = scored[draw, sample]
        logits = policy(
            torch.cat([prompt, completion], dim=1),
            torch.cat([rows.prompt_mask, torch.ones_like(wanted)], dim=1),
            torch.cat([torch.zeros_like(rows.prompt_mask), wanted], dim=1),
        )
        return true_token_log_probability(logits, sequences.completion_ids, scored)
