"""The generated tasks of reasoning-gym by name, with its scores. Needs the extra `reasoning`."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from stabledrl.errors import UserError, did_you_mean, one_line
from stabledrl.rewards.answer import final_answer, strict_format
from stabledrl.rewards.combine import Part, combine, require_parts, weights_by_part
from stabledrl.rewards.length import length_penalty
from stabledrl.rewards.worker_pool import Checked, WorkerPool
from stabledrl.tasks.asking import conversation, plain_text, require_placeholder
from stabledrl.tasks.splits import (
    item_generator,
    question_hash,
    require_range,
    require_split,
    split_of_key,
)
from stabledrl.types import Prompt, RewardOutput

PARTS = ("score", "format", "length")
DEFAULT_WEIGHTS = {"score": 1.0}
DRAWS_LIMIT = 10_000
HELD_OUT_SHARE = 0.1
LENGTH_LIMIT = 4096  # characters of an answer that is scored
# what makes code of text, sympy's readers among it
EVALUATES = re.compile(r"(?<![\w.])(?:eval|exec)\(|\b(?:sympify|parse_expr|S)\(")


class ReasoningData(BaseModel):
    """What the verifier needs: which item it is, and its answer (None where there are many)."""

    model_config = ConfigDict(strict=True)
    dataset: str
    settings: str
    position: Annotated[int, Field(ge=0)]
    answer: str | None = None


@dataclass(frozen=True, config={"extra": "forbid"})
class ReasoningGym:
    """Seeded items of one dataset of reasoning-gym, split by hash of the question.

    dataset: its name. settings: its own settings, as reasoning-gym calls them.
    size: how many items it generates, of which a stream draws; dataset_seed: their seed.
    allow_execution: take datasets whose code evaluates text (some scorers call `eval` on answers).
    prompt_template, system_prompt, chat: how it is asked; "{prompt}" is replaced.
    processes, time_limit_s: as of `stabledrl.rewards.mathematics.MathAnswer`, for items too.
    rewards: weights by part (score, format, length); by default the score alone pays.
    length_limit, name, fixed_length: as for every task.
    """

    data_shape: ClassVar[type[BaseModel]] = ReasoningData
    dataset: str
    settings: dict[str, Any] = Field(default_factory=dict)
    size: Annotated[int, Field(gt=0)] = 100_000
    dataset_seed: Annotated[int, Field(ge=0)] = 0
    allow_execution: bool = False
    prompt_template: str = "{prompt}"
    system_prompt: str | None = None
    chat: bool = False
    processes: Annotated[int, Field(ge=1)] = 2
    time_limit_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0
    rewards: dict[str, Part] = Field(default_factory=dict)
    length_limit: Annotated[int, Field(gt=0)] = 4096
    name: Annotated[str, Field(min_length=1)] = "reasoning_gym"
    fixed_length: Annotated[int, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be: an unknown dataset, one that evaluates text, odd settings."""
        require_placeholder(self.prompt_template, "{prompt}", "prompt_template")
        require_parts(self.rewards, PARTS)
        if find_spec("reasoning_gym") is None:
            raise UserError(
                "task=reasoning_gym needs reasoning-gym; pip install 'stabledrl[reasoning]'"
            )
        len(self._data)  # made now, since that checks its settings

    def prompts(self, split: str, seed: int, start: int, count: int) -> list[Prompt]:
        """Items start..start+count of a split; ValueError for an unknown split."""
        require_split(split)
        require_range(start, count)
        streams = [
            item_generator(self.name, split, seed, index) for index in range(start, start + count)
        ]
        found: dict[int, Prompt] = {}
        for _ in range(DRAWS_LIMIT):  # draw anew for those that got an item of another split
            missing = [place for place in range(count) if place not in found]
            if not missing:
                return [found[place] for place in range(count)]
            positions = [streams[place].randrange(len(self._data)) for place in missing]
            for place, item in zip(missing, self._items(positions), strict=True):
                if split_of_key(item[0], HELD_OUT_SHARE, HELD_OUT_SHARE) == split:
                    found[place] = item[1]
        raise ValueError(f"{self.dataset} has no {split} item among {self.size}: raise task.size")

    def solution(self, prompt: Prompt) -> str:
        """The answer that comes with the item; ValueError where it has none."""
        if prompt.data["answer"] is None:
            raise ValueError(f"items of {self.dataset} come without an answer to learn from")
        return str(prompt.data["answer"])

    def verify(self, prompt: Prompt, completion: str) -> RewardOutput:
        """The dataset's score of the last `<answer>` block, or of the whole text without tags."""
        return self.verify_all([prompt], [completion])[0]

    def verify_all(
        self, prompts: Sequence[Prompt], completions: Sequence[str]
    ) -> list[RewardOutput]:
        """The verdicts of `verify`, scored in parallel."""
        answers = [final_answer(completion)[:LENGTH_LIMIT] for completion in completions]
        requests = [
            [prompt.data["dataset"], prompt.data["settings"], prompt.data["position"], answer]
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        for name in {prompt.data["dataset"] for prompt in prompts} - {self.dataset}:
            raise ValueError(f"an item of {name}, not of {self.dataset}")
        found = self.pool.check(requests)
        return [self._verdict(*pair) for pair in zip(found, completions, strict=True)]

    @cached_property
    def pool(self) -> WorkerPool:
        """The processes that make items and score answers."""
        return WorkerPool(
            "stabledrl.rewards.reasoning:reply",
            self.processes,
            self.time_limit_s,
            first=[self.dataset, self._settings, 0, None],
        )

    def close(self) -> None:
        """End the processes."""
        self.pool.close()

    def _verdict(self, checked: Checked, completion: str) -> RewardOutput:
        if checked.lost:
            return RewardOutput(None, False, {}, f"scoring the answer {checked.lost}")
        score = checked.value or 0.0  # a scorer that raised could not read the answer
        parts = {
            "score": score,
            "format": strict_format(completion),
            "length": length_penalty(completion, self.length_limit),
        }
        total = combine(parts, weights_by_part(DEFAULT_WEIGHTS, self.rewards))
        reason = checked.failure or "a score of 0"
        return RewardOutput(total, score == 1.0, parts, reason if total <= 0 else "")

    @cached_property
    def _settings(self) -> str:
        given = {"size": self.size, "seed": self.dataset_seed, **self.settings}
        return json.dumps(given, sort_keys=True)

    @cached_property
    def _data(self) -> Any:
        from reasoning_gym.factory import DATASETS, create_dataset

        if self.dataset not in DATASETS:
            near = did_you_mean(self.dataset, DATASETS)
            raise UserError(f"task.dataset: reasoning-gym has no '{self.dataset}'{near}")
        source = inspect.getsource(sys.modules[DATASETS[self.dataset][0].__module__])
        if EVALUATES.search(source) and not self.allow_execution:
            raise UserError(
                f"task.dataset={self.dataset}: reasoning-gym evaluates text in it, perhaps that of "
                "completions; task.allow_execution=true takes it all the same"
            )
        try:
            return create_dataset(self.dataset, **json.loads(self._settings))
        except Exception as error:  # whatever other people's code says to odd settings
            raise UserError(f"task.settings of {self.dataset}: {one_line(error)}") from error

    def _items(self, positions: Sequence[int]) -> list[tuple[str, Prompt]]:
        """Items with the hashes of their questions, made by the processes that score them."""
        asked = [[self.dataset, self._settings, position, None] for position in positions]
        items = []
        found = self.pool.check(asked)
        if any(made.lost for made in found):  # a busy machine; items are the same twice
            found = self.pool.check(asked)
        for position, made in zip(positions, found, strict=True):
            if made.failure:
                raise UserError(
                    f"task.dataset={self.dataset}: item {position} cannot be made "
                    f"({made.failure}, task.time_limit_s={self.time_limit_s:g})"
                )
            key = question_hash(made.value["question"])
            items.append((key, self._prompt(made.value, position, key)))
        return items

    def _prompt(self, entry: dict[str, Any], position: int, key: str) -> Prompt:
        turns = conversation(entry["question"], self.prompt_template, self.system_prompt, ())
        return Prompt(
            text=plain_text(turns),
            task=self.name,
            key=f"{self.name}:{key}",
            data={
                "dataset": self.dataset,
                "settings": self._settings,
                "position": position,
                "answer": entry["answer"],
            },
            messages=turns if self.chat else (),
        )
