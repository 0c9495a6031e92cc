"""Errors that are the user's to mend: run.py prints them as one line, without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Bad input with a message that says what to do: a missing file, a corrupt checkpoint, …"""


class ConfigurationError(UserError):
    """A configuration that cannot run; carries every fault found, one line each."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = list(faults)
        if len(self.faults) == 1:
            message = self.faults[0]
        else:
            lines = (f"  {number}. {fault}" for number, fault in enumerate(self.faults, 1))
            message = "\n".join([f"{len(self.faults)} faults in the configuration", *lines])
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ConfigurationError], tuple[list[str]]]:
        """Pickle by the faults, so that the error survives a process boundary."""
        return type(self), (self.faults,)


def one_line(error: object, limit: int | None = None) -> str:
    """The words of an error on one line, at most `limit` characters of them."""
    return " ".join(str(error).split())[:limit]


def first_line(error: object) -> str:
    """The first line of an error's words that says anything, or nothing if none does."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'epsilon'?` with the nearest known word, or nothing if none is near."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def listing(words: Iterable[str]) -> str:
    """Words as they are shown in a message: sorted, with commas."""
    return ", ".join(sorted(words))


def unknown_key(key: str, known: Iterable[str]) -> str:
    """What to say about a key nobody knows: the nearest one, or all of them if none is near."""
    names = [name for name in known if not name.startswith("_")]
    if near := did_you_mean(key, names):
        return f"unknown key{near}"
    return f"unknown key (known: {listing(names)})" if names else "unknown key, there is none here"
