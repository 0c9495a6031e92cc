"""Recordings of published code as the project's own nouns."""

from __future__ import annotations

import torch
from torch import Tensor

from stabledrl.functional.masking import counted_tokens
from stabledrl.types import Corruption, Sequences

MASK, END, PROMPT = 95, 1, 8  # ids of the mask and the end token, tokens of a prompt


def published_sequences(
    ids: Tensor, every_token: bool = False, step: Tensor | None = None
) -> Sequences:
    """Rows of a prompt and a completion; every_token counts those after the end token too."""
    prompt, completion = ids[:, :PROMPT], ids[:, PROMPT:]
    counted = torch.ones_like(completion) > 0 if every_token else counted_tokens(completion, (END,))
    return Sequences(prompt, torch.ones_like(prompt) > 0, completion, counted, step)


def mean_field_corruption(sequences: Sequences, perturbed: Tensor) -> Corruption:
    """The recorded prompt masks of d1 and wd1, the completion hidden. perturbed: input ids."""
    counted = sequences.completion_mask
    hidden = perturbed[:, :PROMPT] == MASK
    return Corruption(torch.ones_like(counted)[None], counted.float()[None], hidden[None])
