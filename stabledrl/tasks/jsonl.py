"""Prompts and answers from files, graded by any verifier: jsonl, gsm8k, math.

A prompt's split is decided by the prompt itself, so that no prompt is in two splits whatever the
files hold, and adding items moves none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass

from stabledrl.errors import UserError, listing
from stabledrl.files import content_hash
from stabledrl.rewards.answer import last_boxed, strict_format
from stabledrl.rewards.combine import Part, combine, require_parts, weights_by_part
from stabledrl.rewards.length import length_penalty
from stabledrl.tasks.asking import Example, conversation, plain_text, require_placeholder
from stabledrl.tasks.sources import Item, read_items
from stabledrl.tasks.splits import (
    SPLITS,
    question_hash,
    require_range,
    require_split,
    split_of_key,
)
from stabledrl.types import Prompt, RewardOutput

PARTS = ("correct", "format", "length")
DEFAULT_WEIGHTS = {"correct": 1.0}
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config={"extra": "forbid"})
class Jsonl:
    r"""Items of a jsonl or parquet file (or of the hub), each with a prompt and an answer.

    verifier: (prompt, completion) -> RewardOutput, with the answer in `prompt.data["answer"]`; it
        may have `verify_all`, `data_shape` and `close`, as `stabledrl.rewards.mathematics` has.
    path: file, or hub:owner/name/split. test_path: file of the test split, whose prompts are left
        out of the other two; without one, test is a share of `path` as validation is.
    content: hash of both files, refused when they have changed; None does not look.
    prompt_key, answer_key: keys of an item. answer_after: the answer is what follows this text's
        last occurrence; boxed_answer: the answer is the last \boxed{} of the text.
    data_keys: further keys that the verifier needs, kept in `prompt.data` under their names.
    validation_share, test_share: shares of `path`, by hash of the prompt.
    allow_execution: whether the verifier may execute completions, if that is what it does.
    prompt_template, system_prompt, examples: how it is asked. chat: whether that is a conversation
        for the policy's chat template, or plain text.
    solution_template: a right completion, for the warm start; "{answer}" is replaced.
    rewards: weights by part (correct: what the verifier pays, format, length).
    length_limit: characters from which on the length part turns negative.
    name, fixed_length: as for every task.
    """

    verifier: Callable[[Prompt, str], RewardOutput]
    path: str | None = None
    test_path: str | None = None
    content: str | None = None
    prompt_key: Annotated[str, Field(min_length=1)] = "prompt"
    answer_key: Annotated[str, Field(min_length=1)] = "answer"
    answer_after: str | None = None
    boxed_answer: bool = False
    data_keys: list[str] = Field(default_factory=list)
    allow_execution: bool = False
    validation_share: Share = 0.1
    test_share: Share = 0.1
    prompt_template: str = "{prompt}"
    system_prompt: str | None = None
    examples: list[Example] = Field(default_factory=list)
    chat: bool = False
    solution_template: str = "{answer}"
    rewards: dict[str, Part] = Field(default_factory=dict)
    length_limit: Annotated[int, Field(gt=0)] = 4096
    name: Annotated[str, Field(min_length=1)] = "jsonl"
    fixed_length: Annotated[int, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        """Refuse what no single field can; the files are read when prompts are asked for."""
        require_placeholder(self.prompt_template, "{prompt}", "prompt_template")
        require_placeholder(self.solution_template, "{answer}", "solution_template")
        require_parts(self.rewards, PARTS)
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share + test_share leave nothing to train on")
        if getattr(self.verifier, "executes", False) and not self.allow_execution:
            raise UserError(
                "the verifier executes completions, and that is off: set task.allow_execution=true"
            )

    @property
    def data_shape(self) -> type[BaseModel] | None:
        """What the verifier says it needs."""
        return getattr(self.verifier, "data_shape", None)

    def prompts(self, split: str, seed: int, start: int, count: int) -> list[Prompt]:
        """Items start..start+count of a split, shuffled anew each time all were given.

        ValueError for an unknown split, UserError for files that cannot be read or an empty split.
        """
        require_split(split)
        require_range(start, count)
        items = self._splits[split]
        if not items:
            share = f"task.{split}_share" if split != "train" else "the shares of the others"
            raise UserError(f"{self.path}: no item falls into the {split} split; change {share}")
        orders = [
            _order(f"{self.name}/{split}/{seed}", index // len(items), len(items))[
                index % len(items)
            ]
            for index in range(start, start + count)
        ]
        return [items[position] for position in orders]

    def solution(self, prompt: Prompt) -> str:
        """The answer in the form that is asked for."""
        return self.solution_template.replace("{answer}", str(prompt.data["answer"]))

    def verify(self, prompt: Prompt, completion: str) -> RewardOutput:
        """The verifier's reward as `correct`, with format and length by their weights."""
        return self._weighted(self.verifier(prompt, completion), completion)

    def verify_all(
        self, prompts: Sequence[Prompt], completions: Sequence[str]
    ) -> list[RewardOutput]:
        """The verdicts of `verify`, in parallel where the verifier can."""
        together = getattr(self.verifier, "verify_all", None)
        if together is None:
            found = [self.verifier(*pair) for pair in zip(prompts, completions, strict=True)]
        else:
            found = together(prompts, completions)
        return [
            self._weighted(verdict, completion)
            for verdict, completion in zip(found, completions, strict=True)
        ]

    def close(self) -> None:
        """End the verifier's processes, if it has any."""
        getattr(self.verifier, "close", lambda: None)()

    def _weighted(self, verdict: RewardOutput, completion: str) -> RewardOutput:
        if verdict.total is None:
            return verdict
        parts = {
            "correct": verdict.total,
            "format": strict_format(completion),
            "length": length_penalty(completion, self.length_limit),
        }
        total = combine(parts, weights_by_part(DEFAULT_WEIGHTS, self.rewards))
        reason = verdict.reason if total <= 0 else ""
        return RewardOutput(total, verdict.solved, {**verdict.parts, **parts}, reason)

    @cached_property
    def _splits(self) -> Mapping[str, Sequence[Prompt]]:
        if self.path is None:
            raise UserError(
                "task.path is null: name a jsonl or parquet file, as in task.path=x.jsonl"
            )
        if self.content not in (None, content_hash(self.path, self.test_path)):
            raise UserError(f"{self.path}: the file has changed since task.content was taken of it")
        found: dict[str, list[Prompt]] = {split: [] for split in SPLITS}
        held_out = {} if self.test_path is None else self._read(self.test_path)
        found["test"] += held_out.values()
        test_share = self.test_share if self.test_path is None else 0.0
        for key, prompt in self._read(self.path).items():
            if key not in held_out:
                found[split_of_key(key, self.validation_share, test_share)].append(prompt)
        return found

    def _read(self, path: str) -> dict[str, Prompt]:
        """Prompts by question; items that say the same twice are one, different answers a fault."""
        found: dict[str, Prompt] = {}
        places: dict[str, str] = {}
        wanted = f'an item should be {{"{self.prompt_key}": "…", "{self.answer_key}": "…"}}'
        for item in read_items(path, wanted):
            prompt = self._prompt(item, wanted)
            key = question_hash(item.content[self.prompt_key])
            if found.setdefault(key, prompt).data != prompt.data:
                raise item.fault(f"the prompt of {places[key]} again, with other data")
            places.setdefault(key, item.place)
        return found

    def _prompt(self, item: Item, wanted: str) -> Prompt:
        missing = {self.prompt_key, self.answer_key, *self.data_keys} - item.content.keys()
        if missing:
            raise item.fault(
                f"the key '{min(missing)}' is missing; {wanted}, it has "
                f"{listing(map(str, item.content))}"
            )
        question = item.content[self.prompt_key]
        if not isinstance(question, str) or not question.strip():
            raise item.fault(f"'{self.prompt_key}' is no text; {wanted}")
        turns = conversation(question, self.prompt_template, self.system_prompt, self.examples)
        data = {key: item.content[key] for key in self.data_keys}
        return Prompt(
            text=plain_text(turns),
            task=self.name,
            key=f"{self.name}:{question_hash(question)}",
            data={**data, "answer": self._answer(item)},
            messages=turns if self.chat else (),
        )

    def _answer(self, item: Item) -> Any:
        """The answer: text, a number as text, or whatever else the verifier can use."""
        answer = item.content[self.answer_key]
        if isinstance(answer, int | float) and not isinstance(answer, bool):
            answer = str(answer)
        if not isinstance(answer, str):
            if answer is None or self.answer_after is not None or self.boxed_answer:
                raise item.fault(f"'{self.answer_key}' is no text")
            return answer
        if self.answer_after is not None:
            if self.answer_after not in answer:
                raise item.fault(
                    f"'{self.answer_key}' has no {self.answer_after!r} before the answer"
                )
            answer = answer.rpartition(self.answer_after)[2]
        if self.boxed_answer:
            answer = last_boxed(answer) or ""
        if not answer.strip():
            raise item.fault(f"'{self.answer_key}' holds no answer")
        return answer.strip()


@lru_cache(maxsize=16)
def _order(stream: str, round_number: int, count: int) -> tuple[int, ...]:
    """The order of a split's items in one round through them."""
    order = list(range(count))
    random.Random(f"{stream}/{round_number}").shuffle(order)
    return tuple(order)
