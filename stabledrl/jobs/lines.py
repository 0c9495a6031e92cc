"""Files of one JSON object a line (jsonl): read with the fault's line named, written line by line.

Shared by the jobs that are given texts: generate, score and grade.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TextIO, TypeVar

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, ValidationError

from stabledrl.errors import UserError
from stabledrl.files import read_object, split_lines
from stabledrl.jobs.record import finite

# Lines worked on together and written when they are done. What is drawn depends on it, so it is no
# setting; the rows of a forward pass are, and change nothing.
PORTION = 256


class Shape(BaseModel):
    """What a line has to hold; whatever else it holds is kept."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    example: ClassVar[str]


class Question(Shape):
    """A line that job=generate completes."""

    example = '{"prompt": "…"}'
    prompt: Annotated[str, Len(1)]


class Pair(Shape):
    """A line that job=score scores."""

    example = '{"prompt": "…", "completion": "…"}'
    prompt: Annotated[str, Len(1)]
    completion: str


class Answer(Shape):
    """A line that job=grade grades; data: what the task's verifier needs (`Prompt.data`)."""

    example = '{"completion": "…", "data": {…}}, with the data that job=generate writes'
    completion: str
    data: dict[str, Any]
    prompt: str = ""
    key: str = ""
    task: str | None = None


Kind = TypeVar("Kind", bound=Shape)
Item = TypeVar("Item")


@dataclass(frozen=True)
class Line(Generic[Kind]):
    """One line of a file.

    number: 1-based, blank lines counted. item: what was asked of it. content: all that it holds.
    """

    path: Path
    number: int
    item: Kind
    content: Mapping[str, Any]

    def fault(self, reason: str) -> UserError:
        """An error about this line."""
        return _fault(self.path, self.number, reason)


def read_lines(name: str | None, shape: type[Kind]) -> list[Line[Kind]]:
    """All lines of the file that `job.input` names; blank ones are passed over.

    UserError for no file, an empty one, and the first line that is not as it should be.
    """
    if name is None:
        raise UserError(
            "job.input is null: name a jsonl file, as in job.input=file.jsonl, "
            f"a line of it: {shape.example}"
        )
    path = Path(os.path.expanduser(name))  # leaves an unknown ~user as it stands
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"job.input={path}: {error.strerror} (in {Path.cwd()})") from error
    lines = [_line(path, number, text, shape) for number, text in split_lines(content)]
    if not lines:
        raise UserError(f"job.input={path}: the file is empty; a line should be {shape.example}")
    return lines


def _line(path: Path, number: int, text: bytes, shape: type[Kind]) -> Line[Kind]:
    wanted = f"a line should be {shape.example}"
    try:
        content = read_object(text, wanted)
    except ValueError as error:
        raise _fault(path, number, str(error)) from error
    try:
        return Line(path, number, shape.model_validate(content), content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        missing = first["type"] == "missing"
        reason = f"the key '{key}' is missing" if missing else f"'{key}': {first['msg']}"
        raise _fault(path, number, f"{reason}; {wanted}") from error


def _fault(path: Path, number: int, reason: str) -> UserError:
    return UserError(f"job.input={path}, line {number}: {reason}")


def portions(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items in order, PORTION at a time."""
    for first in range(0, len(items), PORTION):
        yield items[first : first + PORTION]


def write_lines(file: TextIO, contents: Iterable[Mapping[str, Any]]) -> None:
    """Append objects, a line each, and see to it that a kill does not lose them."""
    file.writelines(json.dumps(finite(content), ensure_ascii=False) + "\n" for content in contents)
    file.flush()
