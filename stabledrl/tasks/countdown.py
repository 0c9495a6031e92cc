"""Countdown: reach a target with some numbers; splits by multiset of numbers, exact verifier."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from stabledrl.rewards.answer import final_answer, strict_format
from stabledrl.rewards.arithmetic_expression import ExpressionError, read_expression
from stabledrl.rewards.combine import Part, combine, require_parts, weights_by_part
from stabledrl.rewards.length import length_penalty
from stabledrl.tasks.asking import require_placeholder
from stabledrl.tasks.countdown_expressions import shortest_expressions
from stabledrl.tasks.splits import item_generator, require_range, require_split
from stabledrl.types import Prompt, RewardOutput

PARTS = ("solved", "well_formed", "format", "length")
DEFAULT_WEIGHTS = {"solved": 0.9, "well_formed": 0.1}
DRAWS_LIMIT = 10_000


class CountdownData(BaseModel):
    """What the verifier needs of a problem."""

    model_config = ConfigDict(strict=True)
    numbers: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    target: int


@dataclass(frozen=True, config={"extra": "forbid"})
class Countdown:
    """Endless seeded Countdown problems, each with a solution that uses all its numbers.

    numbers_count: how many numbers (at most 4: every expression is enumerated).
    minimum_number, maximum_number: range of the numbers, uniform, both included.
    maximum_target: targets are 1..maximum_target, uniform over those the numbers can reach.
    all_numbers: whether an answer must use every number, or may leave some out.
    rewards: weights by part (solved, well_formed, format, length); by default 0.9 and 0.1, which
        makes 1.0 for a right answer, 0.1 for the right numbers with another value.
    length_limit: characters from which on the length part turns negative.
    prompt_template: text of the prompt; "{numbers}" and "{target}" are replaced.
    separator: text between the numbers in the prompt.
    name: name of the task in keys and metrics.
    fixed_length: number of completion tokens, None when an end token ends the completion.
    """

    data_shape: ClassVar[type[BaseModel]] = CountdownData
    numbers_count: Annotated[int, Field(ge=2, le=4)] = 3
    minimum_number: Annotated[int, Field(ge=1)] = 1
    maximum_number: Annotated[int, Field(ge=1, le=10_000)] = 9
    maximum_target: Annotated[int, Field(ge=1)] = 99
    all_numbers: bool = True
    rewards: dict[str, Part] = Field(default_factory=dict)
    length_limit: Annotated[int, Field(gt=0)] = 1024
    prompt_template: str = "{numbers}={target}:"
    separator: Annotated[str, Field(min_length=1)] = ","
    name: Annotated[str, Field(min_length=1)] = "countdown"
    fixed_length: Annotated[int, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        """Refuse what no single field can: crossed bounds, a prompt without problem, odd parts."""
        if self.minimum_number > self.maximum_number:
            raise ValueError(
                f"minimum_number={self.minimum_number} is above "
                f"maximum_number={self.maximum_number}"
            )
        for placeholder in ("{numbers}", "{target}"):
            require_placeholder(self.prompt_template, placeholder, "prompt_template")
        require_parts(self.rewards, PARTS)

    def prompts(self, split: str, seed: int, start: int, count: int) -> list[Prompt]:
        """Items start..start+count of a split; ValueError for an unknown split."""
        require_split(split)
        require_range(start, count)
        return [self._item(split, seed, index) for index in range(start, start + count)]

    def prompt(self, numbers: Sequence[int], target: int) -> Prompt:
        """The prompt of given numbers (0 or more each) and target."""
        if not numbers or min(numbers) < 0:
            raise ValueError(f"numbers are whole and 0 or more, at least one, got {numbers!r}")
        shown = self.separator.join(str(number) for number in numbers)
        text = self.prompt_template.replace("{numbers}", shown).replace("{target}", str(target))
        # The order of the numbers is part of the text, so it is part of the identity.
        key = f"{self.name}:{','.join(str(number) for number in numbers)}={target}"
        data = {"numbers": tuple(numbers), "target": target}
        return Prompt(text=text, task=self.name, key=key, data=data)

    def solution(self, prompt: Prompt) -> str:
        """The shortest right expression (ties: the first in ASCII order); ValueError if none.

        It uses every number and no more parentheses than it needs, so three one-digit numbers take
        at most 7 characters.
        """
        numbers = tuple(sorted(prompt.data["numbers"]))
        found = shortest_expressions(numbers).get(prompt.data["target"])
        if found is None:
            raise ValueError(f"{prompt.key} has no solution that uses every number")
        return found

    def verify(self, prompt: Prompt, completion: str) -> RewardOutput:
        """Grade the expression in the last `<answer>` block, or in the whole text without tags.

        well_formed: the right numbers and a value; solved: and that value is the target.
        A final `= target` is allowed and ignored; any other right-hand side makes both 0.
        """
        well_formed, solved, reason = self._judge(prompt, final_answer(completion))
        parts = {
            "solved": float(solved),
            "well_formed": float(well_formed),
            "format": strict_format(completion),
            "length": length_penalty(completion, self.length_limit),
        }
        total = combine(parts, weights_by_part(DEFAULT_WEIGHTS, self.rewards))
        return RewardOutput(total, solved, parts, reason if total <= 0 else "")

    def _judge(self, prompt: Prompt, answer: str) -> tuple[bool, bool, str]:
        """Whether an answer is well-formed, whether it is right, and if not, why."""
        target = prompt.data["target"]
        written, equals, right_side = answer.partition("=")
        if equals and right_side.strip() != str(target):
            return False, False, "something else than the target after ="
        try:
            expression = read_expression(written)
        except ExpressionError as error:
            return False, False, str(error)
        if not self._right_numbers(prompt.data["numbers"], expression.numbers):
            return False, False, "other numbers"
        if expression.value is None:
            return False, False, "division by zero"
        solved = expression.value == target
        return True, solved, "" if solved else "another value"

    def _right_numbers(self, given: Sequence[int], used: Sequence[int]) -> bool:
        """Whether the numbers used are those given, or some of them where that is allowed."""
        if self.all_numbers:
            return Counter(used) == Counter(given)
        return Counter(used) <= Counter(given)

    def _item(self, split: str, seed: int, index: int) -> Prompt:
        generator = item_generator(self.name, split, seed, index)
        for _ in range(DRAWS_LIMIT):
            numbers = [
                generator.randint(self.minimum_number, self.maximum_number)
                for _ in range(self.numbers_count)
            ]
            multiset = tuple(sorted(numbers))
            if split_of(multiset) != split:
                continue
            targets = reachable_targets(multiset, self.maximum_target)
            if targets:
                return self.prompt(numbers, generator.choice(targets))
        raise ValueError(
            f"no {split} problem of {self.numbers_count} numbers from {self.minimum_number} to "
            f"{self.maximum_number} with a target up to {self.maximum_target}: widen the range"
        )


@lru_cache(maxsize=65536)
def split_of(multiset: tuple[int, ...]) -> str:
    """Split of a sorted multiset of numbers: 80 % train, 10 % validation, 10 % test, by SHA-256.

    A property of the numbers alone: no seed, no order, no target, no setting of the task.
    """
    digest = hashlib.sha256(",".join(str(number) for number in multiset).encode()).digest()
    tenth = int.from_bytes(digest[:8], "big") % 10
    return ("validation", "test")[tenth] if tenth < 2 else "train"


@lru_cache(maxsize=4096)
def reachable_targets(multiset: tuple[int, ...], maximum_target: int) -> tuple[int, ...]:
    """Targets 1..maximum_target that a sorted multiset reaches with all its numbers, ascending."""
    values = shortest_expressions(multiset)
    return tuple(
        sorted(
            int(value)
            for value in values
            if value.denominator == 1 and 1 <= value <= maximum_target
        )
    )
