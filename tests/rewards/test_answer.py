"""Where the answer is found, and what counts as format."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabledrl.rewards.answer import (
    final_answer,
    last_block,
    last_boxed,
    strict_format,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rewards.json").read_text("utf-8"))
FORMATTED = "<reasoning>\na\nb\n</reasoning>\n<answer>\n4\n</answer>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (FORMATTED, "4"),
        ("text before " + FORMATTED, "4"),
        ("<answer>1</answer><answer>2</answer>", "2"),
        ("<answer>1</answer> and </answer>", "1"),
        ("<answer>1 <answer>2</answer>", "2"),
        ("<answer>1</answer> <answer>2", "1"),
        ("</answer>1<answer>", "</answer>1<answer>"),
        ("<answer>1", "<answer>1"),
        ("</answer>", "</answer>"),
        ("<Answer>1</Answer>", "<Answer>1</Answer>"),
        ("<answer></answer>", ""),
        ("  7 ", "7"),
        ("so \\boxed{3}.", "3"),
        ("\\boxed{1} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("<answer>\\boxed{ 42 }</answer> \\boxed{5}", "42"),
        ("\\boxed{3", "\\boxed{3"),
        ("\boxed{3}", "\boxed{3}"),  # a backspace, then oxed: d1 pays it
        ("", ""),
    ],
)
def test_the_final_answer(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_nothing_found_is_none() -> None:
    assert last_block("4") is None
    assert last_boxed("4") is None
    assert last_boxed("\\boxed{{4}") is None


@pytest.mark.parametrize(
    ("text", "strict"),
    [
        (FORMATTED, 1.0),
        (FORMATTED + "\n", 1.0),
        ("text before " + FORMATTED, 0.0),
        (FORMATTED + " text after", 0.0),
        ("<reasoning>a</reasoning> so <answer>4</answer>", 0.0),
        ("<answer>4</answer><reasoning>a</reasoning>", 0.0),
        ("<reasoning>a<answer>4</answer></reasoning>", 0.0),
        ("</reasoning>" + FORMATTED, 0.0),
        ("", 0.0),
    ],
)
def test_format(text: str, strict: float) -> None:
    assert strict_format(text) == strict


@pytest.mark.parametrize("case", GOLDEN["format"], ids=lambda case: case["remark"])
def test_published_strings_get_our_format(case: dict[str, object]) -> None:
    text = str(case["string"])
    assert strict_format(text) == case["ours"]["strict"]


TAGS = [
    FORMATTED,
    "<reasoning>",
    "</reasoning>",
    "<answer>",
    "</answer>",
    "\\boxed{",
    "{",
    "}",
    "4",
    " ",
]


@settings(max_examples=500, deadline=1000)
@given(st.one_of(st.text(), st.lists(st.sampled_from(TAGS)).map("".join)))
def test_the_format_implies_an_answer(text: str) -> None:
    assert final_answer(text) == final_answer(text).strip()
    if strict_format(text):
        assert last_block(text) is not None


@pytest.mark.parametrize("piece", [*TAGS, "\\boxed{{", "<answer></answer>"])
def test_time_is_linear_in_the_text(piece: str) -> None:
    text = piece * 50_000
    start = time.perf_counter()
    final_answer(text), strict_format(text)
    assert time.perf_counter() - start < 0.5
