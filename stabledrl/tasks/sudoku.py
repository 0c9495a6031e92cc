"""4×4 Sudoku: puzzles with one solution, splits that share no solution, and their verifier."""

from __future__ import annotations

import random
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from stabledrl.rewards.answer import final_answer, strict_format
from stabledrl.rewards.combine import Part, combine, require_parts, weights_by_part
from stabledrl.rewards.length import length_penalty
from stabledrl.tasks.asking import require_placeholder
from stabledrl.tasks.splits import item_generator, require_range, require_split
from stabledrl.tasks.sudoku_grids import CELLS, GRIDS_OF_SPLIT, only_solution, unique_after
from stabledrl.types import Prompt, RewardOutput

EMPTY = "0"
PARTS = ("cells", "solved", "format", "length")
# What `reward` names, as the part that then weighs 1.
PART_OF_REWARD = {"fraction": "cells", "solved": "solved"}
SEPARATORS = str.maketrans("", "", " ,\n\r\t")


class SudokuData(BaseModel):
    """What the verifier needs of a puzzle: 16 cells row by row, 0 = empty."""

    model_config = ConfigDict(strict=True)
    puzzle: Annotated[str, Field(pattern=r"^[0-4]{16}$")]
    solution: Annotated[str, Field(pattern=r"^[1-4]{16}$")]


@dataclass(frozen=True, config={"extra": "forbid"})
class Sudoku:
    """Endless seeded 4×4 puzzles with a unique solution, split by orbit of the solution grid.

    blanks_minimum, blanks_maximum: number of empty cells, uniform in between (both included).
    reward: what pays, "fraction" of the originally empty cells that are right, or 0/1 for "solved".
    rewards: weights by part (cells, solved, format, length), on top of the 1 that `reward` gives
        to its part; a weight given here wins.
    length_limit: characters from which on the length part turns negative.
    prompt_template: text of the prompt; "{puzzle}" is replaced by the 16 cells, 0 = empty.
    name: name of the task in keys and metrics.
    fixed_length: number of completion tokens (16 when a token is a cell), None for chat models.
    """

    data_shape: ClassVar[type[BaseModel]] = SudokuData
    blanks_minimum: Annotated[int, Field(ge=1, le=12)] = 9
    blanks_maximum: Annotated[int, Field(ge=1, le=12)] = 12
    reward: Literal["fraction", "solved"] = "fraction"
    rewards: dict[str, Part] = Field(default_factory=dict)
    length_limit: Annotated[int, Field(gt=0)] = 1024
    prompt_template: str = "{puzzle}"
    name: Annotated[str, Field(min_length=1)] = "sudoku"
    fixed_length: Annotated[int, Field(gt=0)] | None = CELLS

    def __post_init__(self) -> None:
        """Refuse what no single field can: crossed bounds, a prompt without puzzle, odd parts."""
        if self.blanks_minimum > self.blanks_maximum:
            raise ValueError(
                f"blanks_minimum={self.blanks_minimum} is above "
                f"blanks_maximum={self.blanks_maximum}"
            )
        require_placeholder(self.prompt_template, "{puzzle}", "prompt_template")
        require_parts(self.rewards, PARTS)

    def prompts(self, split: str, seed: int, start: int, count: int) -> list[Prompt]:
        """Items start..start+count of a split; ValueError for an unknown split."""
        require_split(split)
        require_range(start, count)
        return [self._item(split, seed, index) for index in range(start, start + count)]

    def prompt(self, puzzle: str) -> Prompt:
        """The prompt of a given puzzle; ValueError when it is malformed, full or ambiguous."""
        return self._prompt(puzzle, only_solution(puzzle))

    def solution(self, prompt: Prompt) -> str:
        """The 16 digits that solve the puzzle."""
        return str(prompt.data["solution"])

    def verify(self, prompt: Prompt, completion: str) -> RewardOutput:
        """Grade the 16 cells of the last `<answer>` block, or of the whole text without tags.

        Spaces, commas and line breaks between cells are ignored. Any other character, another
        number of cells or a changed given makes the cells part 0 (d1 skips foreign characters, pads
        or truncates, and never looks at the givens).
        """
        puzzle, solution = str(prompt.data["puzzle"]), str(prompt.data["solution"])
        if EMPTY not in puzzle:
            raise ValueError(f"puzzle {puzzle!r} has no empty cell, so nothing can be graded")
        cells = final_answer(completion).translate(SEPARATORS)
        reason = _refusal(puzzle, cells)
        fraction = 0.0 if reason else _fraction(puzzle, solution, cells)
        solved = fraction == 1.0
        parts = {
            "cells": fraction,
            "solved": float(solved),
            "format": strict_format(completion),
            "length": length_penalty(completion, self.length_limit),
        }
        total = combine(parts, weights_by_part({PART_OF_REWARD[self.reward]: 1.0}, self.rewards))
        if not reason and not solved:
            reason = "no empty cell is right" if fraction == 0.0 else "not every cell is right"
        return RewardOutput(total, solved, parts, reason if total <= 0 else "")

    def _item(self, split: str, seed: int, index: int) -> Prompt:
        generator = item_generator(self.name, split, seed, index)
        solution = generator.choice(GRIDS_OF_SPLIT[split])
        blanks = generator.randint(self.blanks_minimum, self.blanks_maximum)
        return self._prompt(_with_blanks(solution, blanks, generator), solution)

    def _prompt(self, puzzle: str, solution: str) -> Prompt:
        return Prompt(
            text=self.prompt_template.replace("{puzzle}", puzzle),
            task=self.name,
            key=f"{self.name}:{puzzle}",
            data={"puzzle": puzzle, "solution": solution},
        )


def _refusal(puzzle: str, cells: str) -> str:
    """Why the cells deserve nothing at all, or "" when they can be counted."""
    if not cells:
        return "empty answer"
    if not set(cells) <= set("1234"):
        return "a character that is no cell"
    if len(cells) != CELLS:
        return "not 16 cells"
    if any(given not in (EMPTY, cell) for given, cell in zip(puzzle, cells, strict=True)):
        return "a given cell changed"
    return ""


def _fraction(puzzle: str, solution: str, cells: str) -> float:
    """Share of the originally empty cells that are right."""
    empty = [position for position in range(CELLS) if puzzle[position] == EMPTY]
    return sum(cells[position] == solution[position] for position in empty) / len(empty)


def _with_blanks(solution: str, blanks: int, generator: random.Random) -> str:
    """Empty `blanks` cells of a solution so that it stays the only one.

    Cells are emptied in random order, each only if the puzzle stays unique. An order can get stuck
    before the number is reached; then another one is tried. Every one of the 288 grids has puzzles
    with 12 empty cells (tested), so this ends.
    """
    while True:
        puzzle = unique_after(solution, generator.sample(range(CELLS), CELLS), blanks)
        if puzzle is not None:
            return puzzle
