"""Exact reading of expressions, and what is refused with which words."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabledrl.rewards.arithmetic_expression import (
    DEPTH_LIMIT,
    LENGTH_LIMIT,
    ExpressionError,
    read_expression,
)


@pytest.mark.parametrize(
    ("text", "numbers", "value"),
    [
        ("7", (7,), Fraction(7)),
        ("0", (0,), Fraction(0)),
        ("1/3*3", (1, 3, 3), Fraction(1)),
        ("1/3", (1, 3), Fraction(1, 3)),
        ("2-3-4", (2, 3, 4), Fraction(-5)),
        ("8 ÷ ( 3 − 1 ) × 2", (8, 3, 1, 2), Fraction(8)),
        ("-(2+3)", (2, 3), Fraction(-5)),
        ("--2", (2,), Fraction(2)),
        ("\n 1 +\n\t2 ", (1, 2), Fraction(3)),
        ("5/0", (5, 0), None),
        ("-(5/0)+1", (5, 0, 1), None),
        ("1/(5/0)", (1, 5, 0), None),
        ("5/(2-2)", (5, 2, 2), None),
        ("(" * DEPTH_LIMIT + "1" + ")" * DEPTH_LIMIT, (1,), Fraction(1)),
        ("+".join("1" * 33), (1,) * 33, Fraction(33)),
    ],
)
def test_values(text: str, numbers: tuple[int, ...], value: Fraction | None) -> None:
    expression = read_expression(text)
    assert (expression.numbers, expression.value) == (numbers, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty answer"),
        (" \n ", "empty answer"),
        ("2.5*4", r"foreign character '\.'"),
        ("2,5", "foreign character ','"),
        ("1_0", "foreign character"),
        ("1e3", "foreign character 'e'"),
        ("abs(1)", "foreign character 'a'"),
        ("3*4-2 #", "foreign character '#'"),
        ("٣+1", "foreign character"),
        ("2^3", "foreign character"),
        ("7%2", "foreign character"),
        ("2**3", "foreign operator"),
        ("9**9**9", "foreign operator"),
        ("7//2", "foreign operator"),
        ("+2", "foreign operator"),
        ("02+1", "not an arithmetic expression"),
        ("2 3", "not an arithmetic expression"),
        ("2(3)", "not an arithmetic expression"),
        ("()", "not an arithmetic expression"),
        ("(1", "not an arithmetic expression"),
        ("1)+(1", "not an arithmetic expression"),
        ("1+", "not an arithmetic expression"),
        ("1" * (LENGTH_LIMIT + 1), "over 256 characters"),
        ("(" * 33 + "1" + ")" * 33, "nested over 32"),
        ("-" * 33 + "1", "nested over 32"),
        ("+".join("1" * 34), "nested over 32"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        read_expression(text)


NUMBERS = st.integers(0, 99).map(lambda number: (str(number), Fraction(number)))
TREES = st.recursive(
    NUMBERS,
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda parts: (
            f"({parts[0][0]}{parts[1]}{parts[2][0]})",
            {
                "+": parts[0][1] + parts[2][1],
                "-": parts[0][1] - parts[2][1],
                "*": parts[0][1] * parts[2][1],
            }[parts[1]],
        )
    ),
    max_leaves=8,
)


@given(TREES)
def test_values_agree_with_the_tree_they_were_written_from(tree: tuple[str, Fraction]) -> None:
    assert read_expression(tree[0]).value == tree[1]


@settings(max_examples=500, deadline=1000)
@given(st.one_of(st.text(), st.text("0123456789+-*/() ×÷=.")))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        expression = read_expression(text)
    except ExpressionError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
    else:
        assert expression.numbers
