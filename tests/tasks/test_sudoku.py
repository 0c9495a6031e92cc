"""Sudoku: grids, splits, streams, uniqueness and every verdict."""

from __future__ import annotations

import json
import random
import time
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stabledrl.rewards.combine import Part
from stabledrl.tasks.splits import SPLITS
from stabledrl.tasks.sudoku import Sudoku
from stabledrl.tasks.sudoku_grids import GRIDS, GRIDS_OF_SPLIT, canonical, unique_after
from stabledrl.types import Prompt

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rewards.json").read_text("utf-8"))
PUZZLE, SOLUTION = "1204340021404021", "1234341221434321"
TASK = Sudoku()
PROMPT = TASK.prompt(PUZZLE)


def every_solution(puzzle: str) -> list[str]:
    """Brute force by backtracking, knowing only the rules."""
    cell = puzzle.find("0")
    if cell < 0:
        return [puzzle]
    row, column = divmod(cell, 4)
    peers = {
        puzzle[other]
        for other in range(16)
        if other // 4 == row
        or other % 4 == column
        or (other // 8 == row // 2 and other % 4 // 2 == column // 2)
    }
    return [
        found
        for digit in "1234"
        if digit not in peers
        for found in every_solution(puzzle[:cell] + digit + puzzle[cell + 1 :])
    ]


def test_the_grids_are_all_288() -> None:
    assert set(GRIDS) == set(every_solution("0" * 16))
    assert len(GRIDS) == 288


def test_splits_are_whole_orbits_disjoint_and_cover_every_grid() -> None:
    orbits = {split: {canonical(grid) for grid in GRIDS_OF_SPLIT[split]} for split in SPLITS}
    assert {split: len(orbits[split]) for split in SPLITS} == {
        "train": 8,
        "validation": 2,
        "test": 2,
    }
    assert sorted(orbit for split in SPLITS for orbit in orbits[split]) == sorted(
        {canonical(grid) for grid in GRIDS}
    )
    assert sorted(grid for split in SPLITS for grid in GRIDS_OF_SPLIT[split]) == sorted(GRIDS)


@pytest.mark.parametrize("split", SPLITS)
def test_generated_puzzles_are_unique_in_range_and_never_leave_their_split(split: str) -> None:
    blanks = set()
    for prompt in TASK.prompts(split, seed=5, start=0, count=300):
        puzzle = prompt.data["puzzle"]
        assert every_solution(puzzle) == [TASK.solution(prompt)]
        assert TASK.solution(prompt) in GRIDS_OF_SPLIT[split]
        assert TASK.prompt(puzzle) == prompt
        blanks.add(puzzle.count("0"))
    assert blanks == {9, 10, 11, 12}


def test_every_grid_has_a_puzzle_with_twelve_empty_cells() -> None:
    # Else the generator would never come back for that grid.
    for grid in GRIDS:
        generator = random.Random(grid)
        orders = (generator.sample(range(16), 16) for _ in range(500))
        puzzle = next(found for order in orders if (found := unique_after(grid, order, 12)))
        assert puzzle.count("0") == 12
        assert TASK.prompt(puzzle).data["solution"] == grid


def test_a_stuck_order_gives_none() -> None:
    # No 4×4 puzzle with three givens is unique.
    assert unique_after(GRIDS[0], list(range(16)), 13) is None


def test_streams_do_not_depend_on_batching() -> None:
    whole = TASK.prompts("train", seed=1, start=0, count=40)
    assert whole == TASK.prompts("train", 1, 0, 7) + TASK.prompts("train", 1, 7, 33)
    assert whole == [TASK.prompts("train", 1, index, 1)[0] for index in range(40)]
    assert whole != TASK.prompts("train", 2, 0, 40)
    assert TASK.prompts("train", 1, 3, 0) == []


def test_a_stream_is_the_same_in_every_process_and_release() -> None:
    assert [prompt.text for prompt in TASK.prompts("train", 0, 0, 2)] == FIRST_TRAIN


FIRST_TRAIN = ["0423000401004200", "2003030401020030"]


def test_generation_is_fast() -> None:
    start = time.perf_counter()
    TASK.prompts("train", seed=3, start=0, count=1000)
    assert time.perf_counter() - start < 2  # 0.1 s on an idle core


@pytest.mark.parametrize(
    ("completion", "total", "reason"),
    [
        (SOLUTION, 1.0, ""),
        (" ".join(SOLUTION), 1.0, ""),
        (", ".join(SOLUTION), 1.0, ""),
        ("1234\n3412\r\n2143\n4321\n", 1.0, ""),
        (f"so <answer>1111</answer> no, <answer>\n{SOLUTION}\n</answer>", 1.0, ""),
        (f"<answer>\\boxed{{{SOLUTION}}}</answer>", 1.0, ""),
        ("2" + SOLUTION[1:], 0.0, "a given cell changed"),
        ("3" * 16, 0.0, "a given cell changed"),
        (PUZZLE, 0.0, "a character that is no cell"),
        (SOLUTION + "9999", 0.0, "a character that is no cell"),
        (SOLUTION + "1", 0.0, "not 16 cells"),
        (SOLUTION[:-1], 0.0, "not 16 cells"),
        ("|".join(SOLUTION), 0.0, "a character that is no cell"),
        ("١٢٣٤٣٤١٢٢١٤٣٤٣٢١", 0.0, "a character that is no cell"),
        (f"<answer>{SOLUTION}", 0.0, "a character that is no cell"),
        (f"{SOLUTION}<answer></answer>", 0.0, "empty answer"),
        ("", 0.0, "empty answer"),
        # Empty: cells 2, 6, 7, 11, 13 (from 0). One of five right, then none.
        ("1214344421444421", 0.0, "no empty cell is right"),
        ("1234344421444421", 0.2, ""),
        ("1234341221434421", 0.8, ""),
    ],
)
def test_verdicts(completion: str, total: float, reason: str) -> None:
    verdict = TASK.verify(PROMPT, completion)
    assert verdict.total == pytest.approx(total)
    assert verdict.reason == reason
    assert verdict.solved == (total == 1.0)
    assert verdict.parts["cells"] == verdict.total


@pytest.mark.parametrize("case", GOLDEN["sudoku"]["cases"], ids=lambda case: case["remark"])
def test_published_strings_get_our_verdict(case: dict[str, object]) -> None:
    prompt = TASK.prompt(GOLDEN["sudoku"]["puzzle"])
    assert TASK.solution(prompt) == GOLDEN["sudoku"]["solution"]
    assert TASK.verify(prompt, str(case["string"])).total == case["ours"]


def test_reward_solved_pays_all_or_nothing() -> None:
    task = Sudoku(reward="solved")
    almost = task.verify(PROMPT, "1234341221434421")
    assert (almost.total, almost.parts["cells"]) == (0.0, 0.8)
    assert almost.reason == "not every cell is right"
    assert task.verify(PROMPT, SOLUTION).total == 1.0


def test_rewards_add_parts_by_weight_and_win_over_reward() -> None:
    formatted = f"<reasoning>\na\nb\n</reasoning>\n<answer>\n{SOLUTION}\n</answer>"
    task = Sudoku(rewards={"format": Part(0.5), "cells": Part(2.0), "solved": Part()})
    assert task.verify(PROMPT, formatted).total == 2.5
    assert task.verify(PROMPT, "words first " + formatted).total == 2.0
    short = Sudoku(rewards={"length": Part(1.0)}, length_limit=8)
    assert short.verify(PROMPT, SOLUTION).total == 0.0  # 16 characters, twice the limit


def test_mappings_as_hydra_gives_them_become_parts() -> None:
    task = Sudoku(rewards={"format": {"weight": 0.5}})  # type: ignore[dict-item]
    assert task.rewards == {"format": Part(0.5)}


@pytest.mark.parametrize(
    ("puzzle", "message"),
    [
        (SOLUTION, "no empty cell"),
        ("12", "16 digits"),
        ("1204340021404025", "16 digits"),
        ("0" * 16, "288 solutions"),
        ("11" + "0" * 14, "0 solutions"),
    ],
)
def test_bad_puzzles_are_refused(puzzle: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TASK.prompt(puzzle)


def test_a_full_puzzle_in_a_foreign_prompt_is_refused_too() -> None:
    full = Prompt("", "sudoku", "full", {"puzzle": SOLUTION, "solution": SOLUTION})
    with pytest.raises(ValueError, match="no empty cell"):
        TASK.verify(full, SOLUTION)


def test_bad_settings_are_refused() -> None:
    for settings_of_task, message in [
        ({"blanks_minimum": 12, "blanks_maximum": 9}, "above"),
        ({"blanks_maximum": 13}, "less than or equal to 12"),
        ({"prompt_template": "solve"}, "puzzle"),
        ({"rewards": {"formt": {"weight": 1}}}, "did you mean 'format'"),
        ({"rewards": {"format": {"weight": float("nan")}}}, "finite"),
        ({"reward": "half"}, "'fraction' or 'solved'"),
        ({"blanks": 3}, "blanks"),
    ]:
        with pytest.raises(ValidationError, match=message):
            Sudoku(**settings_of_task)  # type: ignore[arg-type]


def test_a_chat_template_keeps_its_braces() -> None:
    task = Sudoku(prompt_template="Use \\boxed{}: {puzzle}", fixed_length=None)
    assert task.prompt(PUZZLE).text == f"Use \\boxed{{}}: {PUZZLE}"
    assert task.fixed_length is None


def test_unknown_split_and_negative_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'train'.*test, train, validation"):
        TASK.prompts("trian", 0, 0, 1)
    with pytest.raises(ValueError, match="test, train, validation"):
        TASK.prompts("x", 0, 0, 1)
    with pytest.raises(ValueError, match="0 or more"):
        TASK.prompts("train", 0, -1, 1)


PIECES = st.sampled_from(
    [*"01234 ,\n|x٣", SOLUTION, PUZZLE, "<answer>", "</answer>", "\\boxed{", "}", "<reasoning>"]
)


@settings(max_examples=2000, deadline=1000)
@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_no_text_crashes_the_verifier(completion: str) -> None:
    verdict = TASK.verify(PROMPT, completion)
    assert verdict.total is not None
    assert 0.0 <= verdict.total <= 1.0
    assert verdict.solved == (verdict.total == 1.0)
    assert bool(verdict.reason) == (verdict.total == 0.0)


def test_long_texts_take_no_time() -> None:
    start = time.perf_counter()
    for piece in ("<answer>", "</answer>", "\\boxed{", "{", "1", "<answer></answer>"):
        TASK.verify(PROMPT, piece * 50_000)
    assert time.perf_counter() - start < 2


def test_every_cell_counts_the_same() -> None:
    empty = [cell for cell, digit in enumerate(PUZZLE) if digit == "0"]
    for right in product((True, False), repeat=len(empty)):
        cells = list(SOLUTION)
        for cell, kept in zip(empty, right, strict=True):
            cells[cell] = SOLUTION[cell] if kept else str(int(SOLUTION[cell]) % 4 + 1)
        assert TASK.verify(PROMPT, "".join(cells)).total == sum(right) / len(empty)
