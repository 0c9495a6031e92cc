"""Reading an arithmetic expression exactly, without ever executing it.

Text → characters allowed → Python's parser → an allow-list of nodes → `Fraction`. Everything that
could take long is refused before it is computed: the text is short, nesting is bounded, and there
is no power (`9**9**9` never becomes a number).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

LENGTH_LIMIT = 256  # characters: six numbers of ten digits with every parenthesis stay far below
DEPTH_LIMIT = 32  # levels of nesting, of parentheses and of operations alike

_FOREIGN = re.compile(r"[^0-9+\-*/() ]")
_OPERATOR_SIGNS = str.maketrans("×÷−", "*/-")
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class ExpressionError(ValueError):
    """The text is no expression of whole numbers, + − × ÷, unary minus and parentheses."""


@dataclass(frozen=True)
class Expression:
    """An expression that was read.

    numbers: the whole numbers as they are written, from left to right.
    value: the exact value; None when it has none, because something is divided by zero.
    """

    numbers: tuple[int, ...]
    value: Fraction | None


def read_expression(text: str) -> Expression:
    """Read whole numbers combined by + - * / (also × ÷ −), unary minus and parentheses.

    White space, line breaks included, separates and means nothing else. Everything else raises
    ExpressionError with one short phrase: other characters (decimals, names, calls, comments),
    `**`, `//`, unary plus, leading zeros, two numbers in a row, over 256 characters or 32 levels.
    """
    if len(text) > LENGTH_LIMIT:
        raise ExpressionError(f"expression over {LENGTH_LIMIT} characters")
    plain = " ".join(text.translate(_OPERATOR_SIGNS).split())
    if not plain:
        raise ExpressionError("empty answer")
    foreign = _FOREIGN.search(plain)
    if foreign:
        raise ExpressionError(f"foreign character {foreign.group()!r}")
    # Python's own parser gives up on deep nesting with errors that differ between versions.
    if _parenthesis_depth(plain) > DEPTH_LIMIT:
        raise ExpressionError(f"expression nested over {DEPTH_LIMIT} levels")
    try:
        tree = ast.parse(plain, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ExpressionError("not an arithmetic expression") from error
    numbers: list[int] = []
    return Expression(value=_value(tree, numbers, DEPTH_LIMIT), numbers=tuple(numbers))


def _parenthesis_depth(text: str) -> int:
    """Deepest nesting of parentheses."""
    depth = deepest = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return deepest


def _value(node: ast.expr, numbers: list[int], levels: int) -> Fraction | None:
    """Value of a node of the allow-list, its numbers appended; None once divided by zero."""
    if levels < 0:
        raise ExpressionError(f"expression nested over {DEPTH_LIMIT} levels")
    match node:
        case ast.Constant(value=int() as number):
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _value(operand, numbers, levels - 1)
            return None if value is None else -value
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            first = _value(left, numbers, levels - 1)
            second = _value(right, numbers, levels - 1)
            return _apply(_OPERATORS[type(sign)], first, second)
        case ast.BinOp() | ast.UnaryOp():
            raise ExpressionError("foreign operator")
    raise ExpressionError("not an arithmetic expression")


def _apply(
    operation: Callable[[Fraction, Fraction], Fraction],
    first: Fraction | None,
    second: Fraction | None,
) -> Fraction | None:
    """The result of an operation; None when an operand has no value or the divisor is zero."""
    if first is None or second is None:
        return None
    try:
        return operation(first, second)
    except ZeroDivisionError:
        return None
