"""Sums and products of whole numbers of several digits: generated, exact."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from stabledrl.rewards.answer import final_answer, strict_format
from stabledrl.rewards.combine import Part, combine, require_parts, weights_by_part
from stabledrl.rewards.length import length_penalty
from stabledrl.tasks.asking import require_placeholder
from stabledrl.tasks.splits import item_generator, require_range, require_split, split_of_key
from stabledrl.types import Prompt, RewardOutput

PARTS = ("solved", "format", "length")
DEFAULT_WEIGHTS = {"solved": 1.0}
DRAWS_LIMIT = 10_000
HELD_OUT_SHARE = 0.1
SIGNS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "*": operator.mul}
# at most 64 characters: no product of numbers of 15 digits is longer, and int() stays quick
NUMBER = re.compile(r"(?=.{1,64}\Z)(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)", re.ASCII)


class ArithmeticData(BaseModel):
    """What the verifier needs of a problem."""

    model_config = ConfigDict(strict=True)
    answer: Annotated[str, Field(pattern=r"^[0-9]+$")]


@dataclass(frozen=True, config={"extra": "forbid"})
class Arithmetic:
    """Endless seeded sums and products of two numbers.

    operations: which there are, each as often. digits_minimum, digits_maximum: digits of a number,
        uniform in between; then the number is uniform over those with that many.
    rewards: weights by part (solved, format, length); by default solved alone pays, 1.
    length_limit: characters from which on the length part turns negative.
    prompt_template: text of the prompt; "{problem}" is replaced.
    name: name of the task in keys and metrics.
    fixed_length: number of completion tokens, None when an end token ends the completion.
    """

    data_shape: ClassVar[type[BaseModel]] = ArithmeticData
    operations: Annotated[list[Literal["+", "*"]], Field(min_length=1)] = Field(
        default_factory=lambda: ["+", "*"]  # type: ignore[arg-type]
    )
    digits_minimum: Annotated[int, Field(ge=1, le=15)] = 2
    digits_maximum: Annotated[int, Field(ge=1, le=15)] = 3
    rewards: dict[str, Part] = Field(default_factory=dict)
    length_limit: Annotated[int, Field(gt=0)] = 1024
    prompt_template: str = "{problem}="
    name: Annotated[str, Field(min_length=1)] = "arithmetic"
    fixed_length: Annotated[int, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        """Refuse what no single field can: crossed bounds, a prompt without problem, odd parts."""
        if self.digits_minimum > self.digits_maximum:
            raise ValueError(
                f"digits_minimum={self.digits_minimum} is above "
                f"digits_maximum={self.digits_maximum}"
            )
        require_placeholder(self.prompt_template, "{problem}", "prompt_template")
        require_parts(self.rewards, PARTS)

    def prompts(self, split: str, seed: int, start: int, count: int) -> list[Prompt]:
        """Items start..start+count of a split; ValueError for an unknown split."""
        require_split(split)
        require_range(start, count)
        return [self._item(split, seed, index) for index in range(start, start + count)]

    def prompt(self, left: int, sign: str, right: int) -> Prompt:
        """The prompt of a given problem."""
        problem = f"{left}{sign}{right}"
        return Prompt(
            text=self.prompt_template.replace("{problem}", problem),
            task=self.name,
            key=f"{self.name}:{problem}",
            data={"answer": str(SIGNS[sign](left, right))},
        )

    def solution(self, prompt: Prompt) -> str:
        """The number."""
        return str(prompt.data["answer"])

    def verify(self, prompt: Prompt, completion: str) -> RewardOutput:
        """1 for the number, in the last `<answer>` block or as the whole text, commas allowed."""
        answer = final_answer(completion)
        number = NUMBER.fullmatch(answer) is not None
        solved = number and int(answer.replace(",", "")) == int(prompt.data["answer"])
        parts = {
            "solved": float(solved),
            "format": strict_format(completion),
            "length": length_penalty(completion, self.length_limit),
        }
        total = combine(parts, weights_by_part(DEFAULT_WEIGHTS, self.rewards))
        reason = "" if solved else "another number" if number else "no number"
        return RewardOutput(total, solved, parts, reason if total <= 0 else "")

    def _item(self, split: str, seed: int, index: int) -> Prompt:
        generator = item_generator(self.name, split, seed, index)
        for _ in range(DRAWS_LIMIT):
            sign = generator.choice(self.operations)
            left, right = (
                generator.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)
                for digits in (
                    generator.randint(self.digits_minimum, self.digits_maximum) for _ in "lr"
                )
            )
            if split_of(left, sign, right) == split:
                return self.prompt(left, sign, right)
        raise ValueError(f"no {split} problem with these digits: raise digits_maximum")


def split_of(left: int, sign: str, right: int) -> str:
    """Split of a problem: 80 % train, 10 % validation, 10 % test; 3+5 and 5+3 are together."""
    key = f"{min(left, right)}{sign}{max(left, right)}"
    return split_of_key(key, HELD_OUT_SHARE, HELD_OUT_SHARE)
