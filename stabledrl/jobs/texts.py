"""Given texts as token ids: what is refused there names its line."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stabledrl.functional.masking import counted_tokens
from stabledrl.jobs.lines import Kind, Line, Pair
from stabledrl.policy import Policy
from stabledrl.prompts import PromptLimit, token_counts
from stabledrl.types import Sequences


def refuse_unknown(policy: Policy, text: str, key: str, line: Line[Kind]) -> None:
    """UserError for text that the tokenizer can only replace by its unknown token."""
    tokenizer = policy.tokenizer
    if tokenizer.unk_token_id is None:
        return
    ids = tokenizer.encode(text, add_special_tokens=False)
    if ids.count(tokenizer.unk_token_id) > text.count(str(tokenizer.unk_token)):
        raise line.fault(
            f"'{key}' has characters that the model's tokenizer does not know; "
            "leave them out or take another model"
        )


def refuse_long(policy: Policy, text: str, limit: PromptLimit, line: Line[Kind]) -> None:
    """UserError for a prompt without room: a line of the user's own is never left out."""
    tokens, [count] = limit.tokens(policy), token_counts(policy, [text])
    if tokens is not None and count > tokens:
        raise line.fault(
            f"'prompt' has {count} tokens, more than {limit.words(policy)}; shorten the prompt, or "
            f"{limit.remedy(policy)}"
        )


def completion_ids(policy: Policy, line: Line[Pair], length: int) -> list[int]:
    """Ids of the completion as a sampler would have left it: with an end token if there is room.

    UserError for one that does not fit into `length` tokens, or that holds a mask token or an end
    token before its end: what stands behind it would not count.
    """
    refuse_unknown(policy, line.item.completion, "completion", line)
    ids: list[int] = policy.tokenizer.encode(line.item.completion, add_special_tokens=False)
    ends = set(policy.facts.end_token_ids)
    if policy.facts.mask_token_id in ids:
        raise line.fault("'completion' holds the model's mask token; leave it out")
    if ends & set(ids[:-1]):
        raise line.fault(
            "'completion' goes on after an end token, where nothing counts; end it there"
        )
    if len(ids) > length:
        raise line.fault(
            f"'completion' has {len(ids)} tokens, sampler.length={length} is shorter; "
            f"raise sampler.length (and sampler.block_length) to at least {len(ids)}"
        )
    closed = len(ids) == length or bool(ends & set(ids[-1:]))
    return ids if closed else [*ids, policy.facts.end_token_ids[0]]


def sequences_of(
    policy: Policy, lines: Sequence[Line[Pair]], length: int, limit: PromptLimit
) -> Sequences:
    """Prompts and completions of `length` tokens, padding after the end token; nobody decoded them.

    UserError as in `completion_ids`, and for a prompt beyond the limit.
    """
    rows = [completion_ids(policy, line, length) for line in lines]
    for line in lines:
        refuse_unknown(policy, line.item.prompt, "prompt", line)
        refuse_long(policy, line.item.prompt, limit, line)
    prompt_ids, prompt_mask = policy.encode([line.item.prompt for line in lines])
    padding = policy.facts.pad_token_id
    ids = torch.tensor([row + [padding] * (length - len(row)) for row in rows])
    ids = ids.to(prompt_ids.device)
    counted = counted_tokens(ids, policy.facts.end_token_ids)
    block = policy.blocks(prompt_mask, length)
    return Sequences(prompt_ids, prompt_mask, ids, counted, block=block)
