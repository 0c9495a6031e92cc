"""Rows of optimiser steps as series of phases, by hand."""

import numpy as np
import pytest

from stabledrl.diagnostics.series import phase_series, read_rows

ROWS = [
    {"step": 0.0, "val/solved": 0.5},
    {
        "step": 0.0,
        "phase": 0.0,
        "train/loss": 1.0,
        "train/grad_norm": 2.0,
        "train/ratio/max": 9.0,
        "train/reward": 0.25,
    },
    {
        "step": 1.0,
        "phase": 0.0,
        "train/loss": 3.0,
        "train/grad_norm": 7.0,
        "train/ratio/max": 4.0,
    },
    {"step": 2.0, "phase": 2.0, "train/loss": -1.0, "train/grad_norm": float("nan")},
    {"step": 3.0, "phase": 2.0, "train/loss": -2.0, "train/grad_norm": float("inf")},
]


def test_means_and_maxima_of_a_phase():
    series = phase_series(ROWS)
    nan = float("nan")
    expected = {
        "train/grad_norm": [7.0, nan, float("inf")],
        "train/loss": [2.0, nan, -1.5],
        "train/ratio/max": [9.0, nan, nan],
        "train/reward": [0.25, nan, nan],
    }
    assert list(series) == list(expected)  # no validation, no counters
    for name, values in expected.items():
        np.testing.assert_array_equal(series[name], values)


def test_no_rows_no_series():
    assert phase_series([]) == {}
    assert phase_series(ROWS[:1]) == {}


def test_a_file_is_read_as_numbers_without_its_empty_cells_and_its_torn_row(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,phase,train/loss,val/solved\n0,,,0.5\n0,0.0,1.5,\n1,0.0,2")
    assert read_rows(path) == [
        {"step": 0.0, "val/solved": 0.5},
        {"step": 0.0, "phase": 0.0, "train/loss": 1.5},
    ]


@pytest.mark.parametrize("row", ["0,zero", "0,1.0,7"])
def test_a_cell_that_is_no_number_names_file_and_row(tmp_path, row):
    path = tmp_path / "metrics.csv"
    path.write_text(f"step,phase\n0,1.0\n{row}\n")
    with pytest.raises(ValueError, match=r"metrics\.csv: row 2"):
        read_rows(path)
