"""How a question is asked: template, system prompt and worked examples, as text or conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config={"extra": "forbid"})
class Example:
    """A worked example that stands before the question. answer: all of a good completion."""

    prompt: Annotated[str, Field(min_length=1)]
    answer: Annotated[str, Field(min_length=1)]


def require_placeholder(template: str, placeholder: str, key: str) -> None:
    """Refuse (ValueError) a template in which the item would not appear."""
    if placeholder not in template:
        raise ValueError(f"{key} needs {placeholder}")


def conversation(
    question: str, template: str, system_prompt: str | None, examples: Sequence[Example]
) -> tuple[tuple[str, str], ...]:
    """(role, content) of every turn: system, examples, and the question in its template."""
    turns = [("system", system_prompt)] if system_prompt else []
    for example in examples:
        turns.append(("user", template.replace("{prompt}", example.prompt)))
        turns.append(("assistant", example.answer))
    return (*turns, ("user", template.replace("{prompt}", question)))


def plain_text(turns: Sequence[tuple[str, str]]) -> str:
    """A conversation for models without chat template: its turns, a blank line between them."""
    return "\n\n".join(content for _, content in turns)
