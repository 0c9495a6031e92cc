"""The yaml of every task builds it, with the defaults of the class."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from stabledrl.tasks.arithmetic import Arithmetic
from stabledrl.tasks.countdown import Countdown
from stabledrl.tasks.sudoku import Sudoku

FOLDER = Path(__file__).parents[2] / "conf" / "task"
SUDOKU = Sudoku().prompt("1204340021404021")
ARITHMETIC = Arithmetic().prompt(23, "*", 45)
COUNTDOWN = Countdown().prompt([2, 3], 5)


@pytest.mark.parametrize(
    ("file", "plain", "prompt", "completions"),
    [
        ("sudoku.yaml", Sudoku(), SUDOKU, ["1234341221434321", "1234341221434421", "", "1"]),
        ("arithmetic.yaml", Arithmetic(), ARITHMETIC, ["1035", "1036", "", "x"]),
        ("countdown.yaml", Countdown(), COUNTDOWN, ["2+3", "2*3", "2", ""]),
    ],
)
def test_yaml_and_defaults_agree(file: str, plain, prompt, completions: list[str]) -> None:  # type: ignore[no-untyped-def]
    task = instantiate(OmegaConf.load(FOLDER / file))
    for split in ("train", "validation", "test"):
        assert task.prompts(split, 0, 0, 5) == plain.prompts(split, 0, 0, 5)
    for completion in completions:
        assert task.verify(prompt, completion) == plain.verify(prompt, completion)
    assert (task.name, task.fixed_length) == (plain.name, plain.fixed_length)


def test_the_command_line_reaches_every_weight() -> None:
    settings = OmegaConf.load(FOLDER / "sudoku.yaml")
    settings.reward = "solved"
    settings.rewards.cells.weight = 0.5
    task = instantiate(settings)
    assert task.verify(SUDOKU, "1234341221434421").total == 0.4  # 0.5 · 4/5, not solved
