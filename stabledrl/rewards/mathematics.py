"""Numeric and mathematical answers: which text is the answer; math-verify says whether it is right.

The rules here decide what is read and refuse what could not be computed; they are linear in the
length of the text. Equality is `stabledrl.rewards.equality`, in processes that may be killed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from stabledrl.errors import UserError
from stabledrl.rewards.answer import marked_answer
from stabledrl.rewards.worker_pool import Checked, WorkerPool
from stabledrl.types import Prompt, RewardOutput

LENGTH_LIMIT = 512  # characters of an answer; the longest of MATH has 200
DEPTH_LIMIT = 16  # levels of braces and parentheses
EXPONENT_DIGITS = 4  # numbers up to 9999 may stand in an exponent or before a factorial
NUMBER = re.compile(r"\d(?:[\d,]*\d)?(?:\.\d+)?")
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
ALGEBRA = re.compile(r"[\\^_{}]|\b[A-Za-z]\s*[-+*/]|[-+*/]\s*[A-Za-z]\b|\d[A-Za-z]\b")
# what makes numbers that no computer holds: long exponents and factorials, powers of powers
HUGE = re.compile(
    rf"(?:\^|\*\*)[\s{{(]*\d{{{EXPONENT_DIGITS + 1},}}|\d{{{EXPONENT_DIGITS + 1},}}\s*!|!\s*!"
)
TOWER = re.compile(r"(?:\^|\*\*)[\s{(]*(\d+)[\s})]*(?:\^|\*\*)[\s{(]*(\d+)")
POWER = re.compile(r"\^|\*\*")
POWER_LIMIT = 8


class MathData(BaseModel):
    """What the verifier needs of an item."""

    model_config = ConfigDict(strict=True)
    answer: Annotated[str, Field(min_length=1)]


@plain_dataclass(frozen=True)
class Reading:
    """What is compared with the gold answer, or why nothing is."""

    texts: tuple[str, ...] = ()
    refusal: str = ""


def read_answer(completion: str, marked_only: bool = False) -> Reading:
    r"""The answer of a completion as math-verify is given it.

    The last `<answer>` block counts, else the last `\boxed{…}`, else (unless `marked_only`) the end
    of the text. Mathematics is read as LaTeX; a sentence around one number as that number. A marked
    answer that names several numbers in words ("4 or 5") is no sentence: it is compared as a whole.
    """
    marked = marked_answer(completion)
    if marked is None and marked_only:
        return Reading(refusal="neither <answer> nor \\boxed{}")
    answer = completion.strip() if marked is None else marked
    words = WORD.findall(answer)
    sentence = marked is None and len(words) > 1
    if sentence:
        tail = answer[-LENGTH_LIMIT:]
        answer = tail if len(tail) == len(answer) else tail.partition(" ")[2]
    answer = answer.replace("\\$", "$").replace("\\%", "").replace("%", "")
    refusal = refused(answer)
    if refusal:
        return Reading(refusal=refusal)
    if sentence or (words and len(NUMBER.findall(answer)) == 1 and not ALGEBRA.search(answer)):
        return Reading((answer,))
    return Reading((boxed(without_full_stop(answer)),))


def refused(answer: str) -> str:
    """Why an answer is not computed at all, or ""."""
    if not answer.strip():
        return "empty answer"
    if len(answer) > LENGTH_LIMIT:
        return f"answer over {LENGTH_LIMIT} characters"
    depth = deepest = 0
    for character in answer:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    if deepest > DEPTH_LIMIT:
        return f"answer nested over {DEPTH_LIMIT} levels"
    if not balanced(answer.replace("\\{", "").replace("\\}", "")):
        return "braces that do not match"  # also what would end the box that it is put into
    towers = (int(base) and int(top) * math.log10(int(base)) for base, top in TOWER.findall(answer))
    if HUGE.search(answer) or len(POWER.findall(answer)) > POWER_LIMIT:
        return "a number too large to be computed"
    if any(digits > EXPONENT_DIGITS for digits in towers):
        return "a number too large to be computed"
    return ""


def balanced(text: str) -> bool:
    """Whether every brace has its partner."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def boxed(answer: str) -> str:
    r"""An answer as LaTeX that math-verify reads as a whole."""
    return f"\\boxed{{{answer}}}"


@dataclass(frozen=True, config={"extra": "forbid"})
class MathAnswer:
    r"""1 for an answer equal to `prompt.data["answer"]`, 0 for any other, no verdict on a timeout.

    marked_only: whether the answer must stand in `<answer>` or `\boxed{}`.
    processes: how many compare at a time; changes no verdict.
    time_limit_s: wall-clock seconds for one comparison, over which there is no verdict.
    Needs the extra `math` (math-verify); UserError without it.
    """

    data_shape: ClassVar[type[BaseModel]] = MathData
    marked_only: bool = False
    processes: Annotated[int, Field(ge=1)] = 2
    time_limit_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0

    def __post_init__(self) -> None:
        """Say at the start what would be missing later."""
        if find_spec("math_verify") is None:
            raise UserError(
                "grading mathematics needs math-verify; install it with "
                "pip install 'stabledrl[math]'"
            )

    @cached_property
    def pool(self) -> WorkerPool:
        """The processes that compare; `pool.timeouts` counts the comparisons without end."""
        return WorkerPool("stabledrl.rewards.equality:same", self.processes, self.time_limit_s)

    def __call__(self, prompt: Prompt, completion: str) -> RewardOutput:
        """The verdict on one completion."""
        return self.verify_all([prompt], [completion])[0]

    def verify_all(
        self, prompts: Sequence[Prompt], completions: Sequence[str]
    ) -> list[RewardOutput]:
        """The verdicts on completions of prompts, compared in parallel."""
        readings = [read_answer(completion, self.marked_only) for completion in completions]
        requests = [
            [boxed(gold_text(prompt.data["answer"])), *reading.texts]
            for prompt, reading in zip(prompts, readings, strict=True)
            if reading.texts
        ]
        results = iter(self.pool.check(requests) if requests else [])
        return [
            verdict(next(results)) if reading.texts else wrong(reading.refusal)
            for reading in readings
        ]

    def close(self) -> None:
        """End the processes."""
        self.pool.close()


def gold_text(answer: str) -> str:
    """A gold answer without the signs that no answer has to repeat."""
    signs_gone = answer.replace("\\$", "").replace("\\%", "").replace("%", "")
    return without_full_stop(signs_gone).strip("$")


def without_full_stop(answer: str) -> str:
    """An answer without the point that ends its sentence and stars of emphasis; .5 stays."""
    return answer.strip("* \n").rstrip(".").rstrip("* \n")


def wrong(reason: str) -> RewardOutput:
    """Nothing, and why."""
    return RewardOutput(0.0, False, {}, reason)


REASONS = {
    "wrong": "another answer",
    "unread answer": "no mathematical answer",
    "unread gold": "the right answer of the item cannot be read",
}


def verdict(checked: Checked) -> RewardOutput:
    """What a comparison means; one without end has no verdict, nor has one that broke its process.

    An exception is an answer that cannot be read.
    """
    if checked.value == "right":
        return RewardOutput(1.0, True, {})
    if checked.value is not None:
        return wrong(REASONS[checked.value])
    if checked.lost:
        return RewardOutput(None, False, {}, f"comparing the answer {checked.lost}")
    return wrong("no mathematical answer")
