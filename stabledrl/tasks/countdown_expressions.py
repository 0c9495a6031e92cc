"""Every value that some numbers can reach, each with its shortest expression."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

# How tightly the outermost operation of an expression binds.
SUM, PRODUCT, NUMBER = 0, 1, 2

# Shortest text by value and binding: a longer text that binds tighter may later save parentheses,
# so the best of every binding is kept.
Reached = dict[tuple[Fraction, int], str]


# Both caches hold every three of the numbers 1..9 and stay below 200 MB for four large numbers.
@lru_cache(maxsize=256)
def shortest_expressions(numbers: tuple[int, ...]) -> dict[Fraction, str]:
    """Shortest expression of every value that uses each of the numbers exactly once.

    numbers: sorted, two to four of them (work grows with the factorial of their count).
    Ties go to the text that sorts first, so the answer depends on the numbers alone.
    """
    best: dict[Fraction, str] = {}
    for (value, _), text in _reach(numbers).items():
        best[value] = min(best.get(value, text), text, key=_shortness)
    return best


@lru_cache(maxsize=128)
def _reach(numbers: tuple[int, ...]) -> Reached:
    if len(numbers) == 1:
        return {(Fraction(numbers[0]), NUMBER): str(numbers[0])}
    reached: Reached = {}
    for left, right in _divisions(numbers):
        for (first, binding), text in _reach(left).items():
            for (second, other_binding), other in _reach(right).items():
                for key, combined in _combined(first, binding, text, second, other_binding, other):
                    reached[key] = min(reached.get(key, combined), combined, key=_shortness)
    return reached


def _divisions(numbers: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every way to divide the numbers into an ordered pair of parts that are not empty."""
    positions = range(len(numbers))
    for size in range(1, len(numbers)):
        for chosen in combinations(positions, size):
            left = tuple(numbers[position] for position in chosen)
            right = tuple(numbers[position] for position in positions if position not in chosen)
            yield left, right


def _combined(
    first: Fraction, binding: int, text: str, second: Fraction, other_binding: int, other: str
) -> Iterator[tuple[tuple[Fraction, int], str]]:
    """The four operations on two expressions, with only the parentheses they need."""
    factor = f"({text})" if binding == SUM else text
    other_factor = f"({other})" if other_binding == SUM else other
    yield (first + second, SUM), f"{text}+{other}"
    yield (first - second, SUM), f"{text}-{other_factor}"
    yield (first * second, PRODUCT), f"{factor}*{other_factor}"
    if second:
        divisor = other if other_binding == NUMBER else f"({other})"
        yield (first / second, PRODUCT), f"{factor}/{divisor}"


def _shortness(text: str) -> tuple[int, str]:
    return len(text), text
