"""Prompts that fit: those with more tokens than there is room for are left out and counted.

A prompt is never cut. Its tokens are those after the chat template.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from stabledrl.errors import UserError
from stabledrl.policy import Policy
from stabledrl.rollout import rendered
from stabledrl.types import Prompt, Task

log = logging.getLogger(__name__)

# Prompts in a row that may be too long before training gives up looking for one that is not.
PATIENCE = 1000


@dataclass(frozen=True)
class PromptLimit:
    """How long a prompt may be.

    maximum: tokens, as configured; None leaves it to the model. completion_length: tokens that
    follow the prompt in the model's context.
    """

    maximum: int | None
    completion_length: int

    def tokens(self, policy: Policy) -> int | None:
        """Tokens of the longest prompt that fits; None where nothing limits it.

        UserError where completions fill the model's context by themselves.
        """
        context = policy.context_length
        if context is None:
            return self.maximum
        room = context - self.completion_length
        if room < 1:
            raise UserError(
                f"sampler.length={self.completion_length} leaves no room for a prompt in the "
                f"model's context of {context} tokens: lower it"
            )
        return room if self.maximum is None else min(room, self.maximum)

    def words(self, policy: Policy) -> str:
        """What a prompt that does not fit is too long for."""
        tokens = self.tokens(policy)
        if tokens == self.maximum:
            return f"rollout.max_prompt_length={tokens}"
        return (
            f"the {tokens} that sampler.length={self.completion_length} leaves in the model's "
            f"context of {policy.context_length}"
        )

    def remedy(self, policy: Policy) -> str:
        """What lets a longer prompt in."""
        raising = self.tokens(policy) == self.maximum
        return "raise it" if raising else "lower sampler.length"


def token_counts(policy: Policy, texts: Sequence[str]) -> list[int]:
    """Tokens of texts as the tokenizer sees them."""
    encoded = policy.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return [len(ids) for ids in encoded]


@dataclass(frozen=True)
class Portion:
    """Prompts that fit, and how many were left out on the way to them.

    shortest: tokens of the shortest that was left out, None without one. end: position in the
    task's stream behind the last prompt that was looked at.
    """

    prompts: list[Prompt]
    dropped: int
    shortest: int | None
    end: int


def sieve(policy: Policy, prompts: Sequence[Prompt], limit: PromptLimit) -> Portion:
    """Those of the prompts that fit, in order."""
    tokens = limit.tokens(policy)
    if tokens is None:
        return Portion(list(prompts), 0, None, len(prompts))
    counts = token_counts(policy, [prompt.text for prompt in rendered(policy, prompts)])
    kept = [prompt for prompt, count in zip(prompts, counts, strict=True) if count <= tokens]
    shortest = min((count for count in counts if count > tokens), default=None)
    return Portion(kept, len(prompts) - len(kept), shortest, len(prompts))


def fitting(policy: Policy, prompts: Sequence[Prompt], limit: PromptLimit, split: str) -> Portion:
    """Those of a fixed list of prompts that fit; the log says how many do not.

    None takes the place of one that is left out: a split may have no other. UserError where none
    fits.
    """
    found = sieve(policy, prompts, limit)
    if not found.prompts:
        raise none_fits(policy, limit, split, found)
    if found.dropped:
        log.warning(
            "%s: %d of %d prompts are left out, they have more tokens than %s",
            split,
            found.dropped,
            len(prompts),
            limit.words(policy),
        )
    return found


def none_fits(policy: Policy, limit: PromptLimit, split: str, found: Portion) -> UserError:
    """What to say where every prompt is too long."""
    return UserError(
        f"{split}: each of {found.dropped} prompts has more tokens than {limit.words(policy)} (the "
        f"shortest has {found.shortest}): {limit.remedy(policy)}"
    )


class PromptStream:
    """The prompts of a task's train split that fit, `size` at a time, as if there were no others.

    A portion depends on its number alone, given task, seed, tokenizer and limit: where it begins is
    remembered, or after a resume found again by counting through those before it.
    """

    def __init__(self, task: Task, seed: int, size: int, limit: PromptLimit) -> None:
        self._task = task
        self._seed = seed
        self._size = size
        self._limit = limit
        self._begins = {0: 0}  # number of a portion -> position in the task's stream
        self._told = False

    def __call__(self, policy: Policy, number: int) -> Portion:
        """Portion `number`, whole; UserError where none of many prompts in a row fits."""
        known = max(begun for begun in self._begins if begun <= number)
        for index in range(known, number + 1):
            portion = self._take(policy, self._begins[index])
            self._begins[index + 1] = portion.end
        if portion.dropped and not self._told:
            self._told = True
            log.warning(
                "train: prompts with more tokens than %s are left out, the next that fit take "
                "their places",
                self._limit.words(policy),
            )
        return portion

    def _take(self, policy: Policy, first: int) -> Portion:
        found: list[Prompt] = []
        end, misses, shortest = first, 0, None
        while len(found) < self._size:
            wanted = self._size - len(found)
            part = sieve(policy, self._task.prompts("train", self._seed, end, wanted), self._limit)
            found += part.prompts
            end += wanted
            misses = 0 if part.prompts else misses + wanted
            lengths = [each for each in (shortest, part.shortest) if each is not None]
            shortest = min(lengths, default=None)
            if misses >= PATIENCE:
                nothing = Portion([], misses, shortest, end)
                raise none_fits(policy, self._limit, "train", nothing)
        return Portion(found, end - first - len(found), shortest, end)
