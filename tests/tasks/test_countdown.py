"""Countdown: splits, streams, canonical solutions and every verdict."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from itertools import combinations_with_replacement, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stabledrl.rewards.combine import Part
from stabledrl.tasks.countdown import Countdown, split_of
from stabledrl.tasks.countdown_expressions import shortest_expressions
from stabledrl.tasks.splits import SPLITS
from stabledrl.types import Prompt

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rewards.json").read_text("utf-8"))
TASK = Countdown()


def test_splits_are_a_property_of_the_multiset() -> None:
    shares = [split_of(numbers) for numbers in combinations_with_replacement(range(1, 100), 3)]
    for split, share in zip(SPLITS, (0.8, 0.1, 0.1), strict=True):
        assert shares.count(split) / len(shares) == pytest.approx(share, abs=0.005)
    # Written down, so that a later change of the hash cannot move items between splits unnoticed.
    tiny = [split_of(numbers) for numbers in combinations_with_replacement(range(1, 10), 3)]
    assert [tiny.count(split) for split in SPLITS] == [134, 15, 16]


@pytest.mark.parametrize("split", SPLITS)
def test_items_stay_in_their_split_and_are_solvable(split: str) -> None:
    for prompt in TASK.prompts(split, seed=4, start=0, count=500):
        numbers, target = prompt.data["numbers"], prompt.data["target"]
        assert split_of(tuple(sorted(numbers))) == split
        assert len(numbers) == 3
        assert min(numbers) >= 1
        assert max(numbers) <= 9
        assert 1 <= target <= 99
        assert prompt.text == f"{numbers[0]},{numbers[1]},{numbers[2]}={target}:"
        answer = TASK.solution(prompt)
        assert len(answer) <= 7
        assert set(answer) <= set("0123456789+-*/()")
        verdict = TASK.verify(prompt, answer)
        assert (verdict.total, verdict.solved, verdict.reason) == (1.0, True, "")


def test_the_solution_does_not_depend_on_the_order_of_the_numbers() -> None:
    assert {TASK.solution(TASK.prompt(order, 21)) for order in permutations((4, 9, 3))} == {"3*4+9"}


def test_streams_do_not_depend_on_batching() -> None:
    whole = TASK.prompts("validation", seed=1, start=0, count=40)
    assert whole == TASK.prompts("validation", 1, 0, 9) + TASK.prompts("validation", 1, 9, 31)
    assert whole != TASK.prompts("validation", 2, 0, 40)
    assert [prompt.text for prompt in TASK.prompts("train", 0, 0, 2)] == FIRST_TRAIN


FIRST_TRAIN = ["9,2,9=99:", "2,6,7=26:"]


def every_value(expressions: tuple[tuple[Fraction, ...], ...]) -> set[Fraction]:
    """Values that numbers reach by replacing any two by a result, over and over."""
    found: set[Fraction] = set()
    for values in expressions:
        if len(values) == 1:
            found.add(values[0])
            continue
        for left, right, *rest in permutations(values):
            results = [left + right, left - right, left * right]
            results += [left / right] if right else []
            found |= every_value(tuple((result, *rest) for result in results))
    return found


@pytest.mark.parametrize("numbers", [(1, 2), (3, 3, 8), (1, 5, 5), (2, 4, 7), (3, 3, 8, 8)])
def test_enumeration_reaches_exactly_every_value(numbers: tuple[int, ...]) -> None:
    table = shortest_expressions(numbers)
    assert set(table) == every_value((tuple(Fraction(number) for number in numbers),))
    for value, text in table.items():
        if value.denominator == 1:
            verdict = TASK.verify(TASK.prompt(numbers, int(value)), text)
            assert verdict.solved, text


def test_parentheses_only_where_needed() -> None:
    assert shortest_expressions((1, 2, 3))[Fraction(9)] == "(1+2)*3"
    assert shortest_expressions((1, 2, 3))[Fraction(0)] == "1+2-3"
    assert shortest_expressions((3, 3, 8, 8))[Fraction(24)] == "8/(3-8/3)"


@pytest.mark.parametrize(
    ("numbers", "target", "completion", "total"),
    [
        ([44, 19, 35], 28, "(44+19)-35", 1.0),
        ([2, 5, 4], 10, "2.5*4", 0.0),
        ([2, 3], 8, "2**3", 0.0),
        ([2, 7], 3, "7//2", 0.0),
        ([6, 6, 2], 6, "6*2-6", 1.0),
        ([1, 3, 3], 1, "1/3*3", 1.0),
        ([5, 0], 1, "5/0", 0.0),
        ([9, 9, 9], 1, "9**9**9", 0.0),
        ([2, 3], 5, "2+3=5", 1.0),
        ([2, 3], 5, "2+3 = 5 ", 1.0),
        ([2, 3], 5, "2+3=6", 0.0),
        ([2, 3], 6, "2+3=6", 0.1),
        ([2, 3], 5, "2+3=5=5", 0.0),
        ([2, 3], 5, "2+3==5", 0.0),
        ([2, 3], 5, "2+3=", 0.0),
        ([2, 3], 5, "5=2+3", 0.0),
        ([2, 3], 6, "2×3", 1.0),
        ([6, 3], 2, "6÷3", 1.0),
        ([6, 3], 3, "6−3", 1.0),
        ([2, 3], 1, "-2+3", 1.0),
        ([2, 3], 5, "+2+3", 0.0),
        ([2, 3], 5, "2+3+0", 0.0),
        ([2, 3], 5, "5", 0.0),
        ([2, 3], 7, "2+3", 0.1),
        ([2, 3], 7, "2+3 # seven", 0.0),
        ([2, 3], 5, "02+3", 0.0),
        ([2, 3], 5, "2\n+3", 1.0),
        ([2, 3], 5, "<answer>\n2+\n3\n</answer>", 1.0),
        ([2, 3], 5, "<answer>2*3</answer> or <answer>2+3</answer>", 1.0),
        ([2, 3], 5, "<answer>\\boxed{2+3}</answer>", 1.0),
        ([2, 3], 5, "<answer>2+3", 0.0),
        ([2, 3], 5, "the answer is 2+3", 0.0),
        ([2, 3], 5, "", 0.0),
        ([2, 3], 5, "2(3)", 0.0),
        ([2, 3], 5, "٢+٣", 0.0),
    ],
)
def test_verdicts(numbers: list[int], target: int, completion: str, total: float) -> None:
    verdict = TASK.verify(TASK.prompt(numbers, target), completion)
    assert verdict.total == total
    assert verdict.solved == (total == 1.0)
    assert bool(verdict.reason) == (total == 0.0)


@pytest.mark.parametrize("case", GOLDEN["countdown"], ids=lambda case: case["string"])
def test_published_strings_get_our_verdict(case: dict[str, object]) -> None:
    data = {"numbers": case["numbers"], "target": case["target"]}
    assert TASK.verify(Prompt("", "countdown", "", data), str(case["string"])).total == case["ours"]


def test_a_subset_counts_where_allowed() -> None:
    subset = Countdown(all_numbers=False)
    prompt = subset.prompt([2, 3, 4], 12)
    assert subset.verify(prompt, "3*4").total == 1.0
    assert subset.verify(prompt, "3*2").total == 0.1
    assert subset.verify(prompt, "3*4+2-2").total == 0.0
    assert subset.verify(prompt, "12").total == 0.0


def test_rewards_by_named_weight() -> None:
    task = Countdown(rewards={"well_formed": Part(0.0), "solved": Part(1.0), "format": Part(0.5)})
    prompt = task.prompt([2, 3], 5)
    assert task.verify(prompt, "2*3").total == 0.0
    assert task.verify(prompt, "2*3").reason == "another value"
    formatted = "<reasoning>\na\nb\n</reasoning>\n<answer>\n2+3\n</answer>"
    assert task.verify(prompt, formatted).total == 1.5
    assert task.verify(prompt, "text " + formatted).total == 1.0


def test_bad_problems_and_settings_are_refused() -> None:
    for numbers in ([], [2, -3]):
        with pytest.raises(ValueError, match="0 or more"):
            TASK.prompt(numbers, 5)
    with pytest.raises(ValueError, match="no solution"):
        TASK.solution(TASK.prompt([1, 1], 50))
    for settings_of_task, message in [
        ({"minimum_number": 9, "maximum_number": 3}, "above"),
        ({"numbers_count": 5}, "less than or equal to 4"),
        ({"prompt_template": "{numbers}"}, "target"),
        ({"rewards": {"wellformed": {"weight": 1}}}, "did you mean 'well_formed'"),
        ({"numbers": 3}, "numbers"),
    ]:
        with pytest.raises(ValidationError, match=message):
            Countdown(**settings_of_task)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'validation'"):
        TASK.prompts("valid", 0, 0, 1)


def test_a_range_without_any_problem_says_so() -> None:
    # One multiset only, and it belongs to one split; the other two have nothing.
    task = Countdown(numbers_count=2, minimum_number=5, maximum_number=5)
    for split in SPLITS:
        if split == split_of((5, 5)):
            assert task.prompts(split, 0, 0, 1)
        else:
            with pytest.raises(ValueError, match="widen the range"):
                task.prompts(split, 0, 0, 1)


def test_four_numbers_work() -> None:
    task = Countdown(numbers_count=4, maximum_number=20)
    for prompt in task.prompts("test", 0, 0, 5):
        assert task.verify(prompt, task.solution(prompt)).solved


PROMPT = TASK.prompt([2, 3, 4], 10)
PIECES = st.sampled_from(
    [*"0234 9+-*/()=.,_#\n", "**", "//", "<answer>", "</answer>", "\\boxed{", "}", "×", "٣", "2+3"]
)


@settings(max_examples=2000, deadline=1000)
@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_no_text_crashes_the_verifier(completion: str) -> None:
    verdict = TASK.verify(PROMPT, completion)
    assert verdict.total in (0.0, 0.1, 1.0)
    assert bool(verdict.reason) == (verdict.total == 0.0)


@pytest.mark.parametrize(
    "completion",
    [
        "9**9**9",
        "(" * 50_000,
        "(" * 30 + "2" + ")" * 30,
        "-" * 200 + "2",
        "9" * 100_000,
        "*".join(["99999999"] * 28),
        "<answer>" * 50_000,
        "\\boxed{" * 50_000,
        "2+3=" + "9" * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_texts_are_refused_in_milliseconds(completion: str) -> None:
    start = time.perf_counter()
    assert TASK.verify(PROMPT, completion).total == 0.0
    assert time.perf_counter() - start < 0.1
