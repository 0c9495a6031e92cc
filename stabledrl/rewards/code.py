"""Programs as answers: run shut in, against tests. Off unless `allow_execution` is set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from stabledrl.errors import UserError
from stabledrl.rewards.answer import last_block
from stabledrl.rewards.sandbox import Limits, NoIsolation, isolates, run_program
from stabledrl.types import Prompt, RewardOutput

FENCE = "```"
LENGTH_LIMIT = 65_536  # characters of a program


class InputOutput(BaseModel):
    """A program reads `input` and must write `output` (white space at line ends is ignored)."""

    model_config = ConfigDict(strict=True)
    input: str = ""
    output: str


class CodeData(BaseModel):
    """What the verifier needs: tests, each input and output or Python assertions to run after."""

    model_config = ConfigDict(strict=True)
    answer: Annotated[list[InputOutput | str], Field(min_length=1)]


@dataclass(frozen=True, config={"extra": "forbid"})
class CodeTests:
    """1 for a program that passes every test of `prompt.data["answer"]`, or the share it passes.

    reward: "all" (0/1) or "fraction". time_limit_s: processor seconds for one test. memory_mib: of
    address space. require_isolation: refuse where the system cannot cut off network and files;
    false runs programs all the same. processes: programs at a time; changes no verdict.
    A program that takes too long fails its test: that is its fault, not ours.
    Assertions run in the program's process, which can cheat; with input and output it cannot.
    """

    executes: ClassVar[bool] = True
    data_shape: ClassVar[type[BaseModel]] = CodeData
    reward: Literal["all", "fraction"] = "all"
    time_limit_s: Annotated[float, Field(gt=0, le=600)] = 4.0
    memory_mib: Annotated[int, Field(ge=64)] = 1024
    require_isolation: bool = True
    processes: Annotated[int, Field(ge=1)] = 2

    def __post_init__(self) -> None:
        """Say at the start that programs cannot be shut in here."""
        if self.require_isolation and not isolates():
            raise UserError(
                "programs cannot be cut off from network and files here (it takes Linux with user "
                "namespaces, and a Python that starts with nothing but its own files in sight); "
                "verifier.require_isolation=false runs completions all the same"
            )

    def __call__(self, prompt: Prompt, completion: str) -> RewardOutput:
        """Run the last program of a completion against the tests."""
        source = last_program(completion)
        if not source.strip() or len(source) > LENGTH_LIMIT:
            reason = "a program too long" if source.strip() else "no program"
            return RewardOutput(0.0, False, {"tests": 0.0}, reason)
        tests = CodeData.model_validate({"answer": prompt.data["answer"]}).answer
        passed = 0
        for good in self._results(source, tests):
            passed += good
            if not good and self.reward == "all":
                break
        solved, share = passed == len(tests), passed / len(tests)
        total = share if self.reward == "fraction" else float(solved)
        return RewardOutput(total, solved, {"tests": share}, "" if total else "a test fails")

    def verify_all(
        self, prompts: Sequence[Prompt], completions: Sequence[str]
    ) -> list[RewardOutput]:
        """The verdicts on completions of prompts, several programs at a time."""
        with ThreadPoolExecutor(self.processes) as threads:
            return list(threads.map(self, prompts, completions))

    def _results(self, source: str, tests: Sequence[InputOutput | str]) -> Iterator[bool]:
        limits = Limits(self.time_limit_s, self.memory_mib << 20, self.require_isolation)
        for test in tests:
            try:
                yield passes(source, test, limits)
            except NoIsolation as error:
                raise UserError("programs can no longer be shut in on this system") from error


def passes(source: str, test: InputOutput | str, limits: Limits) -> bool:
    """Whether a program passes one test."""
    if isinstance(test, InputOutput):
        outcome = run_program(source, test.input, limits)
        return outcome.code == 0 and lines_of(outcome.output) == lines_of(test.output)
    # a program that ends early, with exit code 0, must not count as one that passed
    sign = hashlib.sha256(f"{source}\0{test}".encode(errors="replace")).hexdigest()
    outcome = run_program(f"{source}\n\n{test}\n\nprint({sign!r})\n", "", limits)
    return outcome.code == 0 and outcome.output.rstrip().endswith(sign)


def lines_of(text: str) -> list[str]:
    """Lines without white space at their ends, and without empty ones at the end of the text."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def last_program(completion: str) -> str:
    """The last fenced block of the last `<answer>` block or of the text; all of it without fence.

    An opened fence that is not closed is no program.
    """
    block = last_block(completion)
    text = completion if block is None else block
    pieces = text.split(FENCE)
    if len(pieces) < 3:
        return text if len(pieces) == 1 else ""
    body = pieces[-2] if len(pieces) % 2 else pieces[-3]
    language, newline, program = body.partition("\n")
    return program if newline and language.strip().isalnum() else body
