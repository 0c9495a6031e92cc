"""Tiny policies that write block by block, and texts in their blocks."""

from __future__ import annotations

from torch import Tensor

from stabledrl.attention.staircase import Staircase
from stabledrl.functional.attention import Origin
from stabledrl.functional.masking import counted_tokens
from stabledrl.policy import AdapterFacts, Policy
from stabledrl.types import Sequences
from tests.policies import END, MASK, PAD, left_padded, tiny_policy


def block_policy(block_length: int, origin: Origin = "absolute", seed: int = 0) -> Policy:
    """The tiny policy as a block-causal one, with logits far from uniform."""
    facts = AdapterFacts(MASK, (END,), PAD, block_length=block_length)
    made = tiny_policy(seed)
    return Policy(made.backbone, made.tokenizer, facts).look(Staircase(origin=origin))


def written(
    policy: Policy, prompts: list[list[int]], completions: Tensor, step: Tensor | None = None
) -> Sequences:
    """Left-padded prompts with completions, in the policy's blocks."""
    ids, mask = left_padded(prompts)
    counted = counted_tokens(completions, (END,))
    block = policy.blocks(mask, completions.shape[1])
    return Sequences(ids, mask, completions, counted, step, block)
