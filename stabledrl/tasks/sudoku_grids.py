"""All 288 complete 4×4 Sudoku grids, their orbits and splits, and fast uniqueness.

A grid is a string of its 16 cells row by row. A set of grids is one integer of 288 bits, so that
the grids which agree with some givens are a few bitwise ands away.
"""

from __future__ import annotations

from itertools import permutations, product

CELLS = 16
EVERY_DIGIT = set("1234")

# Two grids are in one orbit when relabelling their digits turns one into the other; the canonical
# grid of an orbit is the one whose first row is 1234. Puzzles of one orbit share their solution up
# to the names of the digits, so an orbit is never divided. The 288 grids are 12 orbits of 24.
# Under the full symmetry group they are two classes of 4 and 8 orbits: each held-out split takes
# one orbit of the small class and one of the large class.
HELD_OUT_ORBITS = {
    "validation": ("1234341221434321", "1234341223414123"),
    "test": ("1234432121433412", "1234431221433421"),
}


def _is_grid(rows: tuple[tuple[str, ...], ...]) -> bool:
    """Whether four rows, each of all digits, also have all digits in every column and box."""
    columns = zip(*rows, strict=True)
    boxes = (
        rows[row][column : column + 2] + rows[row + 1][column : column + 2]
        for row in (0, 2)
        for column in (0, 2)
    )
    return all(set(cells) == EVERY_DIGIT for cells in (*columns, *boxes))


def canonical(grid: str) -> str:
    """The grid of the same orbit whose first row is 1234."""
    return grid.translate(str.maketrans(grid[:4], "1234"))


_ROWS = tuple(permutations("1234"))
CANONICAL_GRIDS = tuple(
    "".join(map("".join, rows))
    for rows in product(_ROWS[:1], _ROWS, _ROWS, _ROWS)
    if _is_grid(rows)
)
GRIDS = tuple(
    grid.translate(str.maketrans("1234", "".join(digits)))
    for grid in CANONICAL_GRIDS
    for digits in _ROWS
)
GRIDS_OF_SPLIT = {
    split: tuple(grid for grid in GRIDS if canonical(grid) in orbits)
    for split, orbits in HELD_OUT_ORBITS.items()
}
GRIDS_OF_SPLIT["train"] = tuple(
    grid
    for grid in GRIDS
    if not any(canonical(grid) in orbits for orbits in HELD_OUT_ORBITS.values())
)
_ALL = (1 << len(GRIDS)) - 1
# The grids that carry a digit at a cell, as bits.
_CARRYING = tuple(
    {
        digit: sum(1 << bit for bit, grid in enumerate(GRIDS) if grid[cell] == digit)
        for digit in "1234"
    }
    for cell in range(CELLS)
)


def _agreeing(puzzle: str) -> int:
    """The grids that agree with every given of a puzzle, as bits."""
    grids = _ALL
    for cell, digit in enumerate(puzzle):
        if digit != "0":
            grids &= _CARRYING[cell][digit]
    return grids


def solutions(puzzle: str) -> list[str]:
    """Every grid that agrees with the givens of a puzzle (16 of 0–4)."""
    grids = _agreeing(puzzle)
    return [grid for bit, grid in enumerate(GRIDS) if grids >> bit & 1]


def only_solution(puzzle: str) -> str:
    """The one solution of a puzzle; ValueError when it is malformed, full or ambiguous."""
    if len(puzzle) != CELLS or not set(puzzle) <= set("01234"):
        raise ValueError(f"a puzzle is 16 digits from 0 (empty) to 4, got {puzzle!r}")
    if "0" not in puzzle:
        raise ValueError(f"puzzle {puzzle!r} has no empty cell, so nothing can be graded")
    found = solutions(puzzle)
    if len(found) != 1:
        raise ValueError(f"puzzle {puzzle!r} has {len(found)} solutions, it needs exactly one")
    return found[0]


def unique_after(solution: str, order: list[int], blanks: int) -> str | None:
    """Empty `blanks` cells in the given order, skipping those that uniqueness needs.

    Returns the puzzle, or None when the order gets stuck before that many are empty.
    """
    kept = list(range(CELLS))
    for cell in order:
        grids = _ALL
        for other in kept:
            if other != cell:
                grids &= _CARRYING[other][solution[other]]
        if grids & (grids - 1):
            continue
        kept.remove(cell)
        if len(kept) == CELLS - blanks:
            return "".join(solution[cell] if cell in kept else "0" for cell in range(CELLS))
    return None
