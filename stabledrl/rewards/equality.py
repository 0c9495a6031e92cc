"""Whether two mathematical answers are the same, by math-verify. Runs in worker processes only.

math-verify's own time limits are off: they are signals, which raise or say False off the main
thread. The pool that runs this has one that always works.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

CONFIGURATION = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
DIGITS = 6  # places after the point that decimal fractions have to agree in
PRECISION = 100  # digits for what holds no decimal fraction: 15 would make 1/2^99 and 1/2^98 equal
FLOAT_PRECISION = 15  # digits a decimal fraction is held with
BASE = re.compile(r"(?<=\d)_\{?(\d+)")  # of 4210_{5}, which math-verify does not read

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # "time limits are off"


def same(request: Sequence[str]) -> str:
    """`[gold, *readings of the answer]` → "right", "wrong", "unread answer" or "unread gold".

    Each is LaTeX or text from which math-verify takes the expression. Right is what equals the gold
    answer in any reading; an answer may leave out the base of a number, but not name others only.
    """
    bases, *others = (set(BASE.findall(text)) for text in request)
    if any(other and not bases <= other for other in others):
        return "wrong"
    gold, *readings = (_read(text) for text in request)
    if not gold:
        return "unread gold"
    if not any(readings):
        return "unread answer"
    return "right" if any(_equal(gold, reading) for reading in readings) else "wrong"


def _read(text: str) -> list[object]:
    """What math-verify finds in a text, nothing if that cannot be parsed."""
    found: list[object] = parse(
        text, CONFIGURATION, fallback_mode="no_fallback", parsing_timeout=None
    )
    return found


def _equal(gold: list[object], answer: list[object]) -> bool:
    decimal = any(_is_decimal(item) for item in (*gold, *answer))
    return bool(
        verify(
            gold,
            answer,
            float_rounding=DIGITS + max(map(_leading_zeros, gold), default=0),
            numeric_precision=FLOAT_PRECISION if decimal else PRECISION,
            timeout_seconds=None,
        )
    )


def _is_decimal(item: object) -> bool:
    from sympy import Float

    return bool(item.has(Float)) if hasattr(item, "has") else False


def _leading_zeros(item: object) -> int:
    """Zeros after the point of a number below 1, so that 0.0000001 is not 0.0000002."""
    try:
        size = abs(float(item))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0
    return max(0, -math.floor(math.log10(size)) - 1) if 0 < size < 1 else 0


# The first expression of each kind costs a tenth of a second or more: tables are built.
for _answer in (
    "\\boxed{1/2^{99}}",
    "\\boxed{(1,\\frac{9}{2})}",
    "$x^2+1$",
    "is 42",
    "\\boxed{ab=}",
):
    same(["\\boxed{x^{2}-\\sqrt{2}+1}", _answer])
