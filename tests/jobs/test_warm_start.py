"""The shipped Sudoku model: the rate it is said to have, and the command that made it."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

SHIPPED = 0.406  # assets/README.md: 512 held-out puzzles
NOISE = 0.06  # what validations 50 updates apart differ by at the warm start's constant rate


def solve_rate(folder, *overrides: str) -> float:
    """The optimised metric of a run of run.py."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *overrides, f"paths.output_dir={folder}"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    [summary] = folder.glob("*/*/*/summary.json")
    return float(json.loads(summary.read_text())["optimized_metric"])


@pytest.mark.slow
def test_the_shipped_model_has_its_rate(tmp_path):
    rate = solve_rate(tmp_path, "job=evaluate", "job.prompts=512")
    assert abs(rate - SHIPPED) < 0.01


@pytest.mark.slow
def test_its_command_gives_that_rate_again(tmp_path):
    rate = solve_rate(tmp_path, "experiment=warm_start_sudoku", "logger=csv")
    assert abs(rate - SHIPPED) < NOISE
