"""Runs read from folders as they are."""

import numpy as np
import pytest

from stabledrl.diagnostics.runs import Validation, read_run
from tests.diagnostics.small_folders import failed_folder, run_folder


def test_a_finished_run(tmp_path):
    settings = {"optimizer": {"lr": 0.1}, "callbacks": {"a": {"dirpath": str(tmp_path / "r/c")}}}
    folder = run_folder(tmp_path / "r", seed=3, settings=settings, choices={"algorithm": "grpo"})
    run = read_run(str(folder))
    assert (run.status, run.seed) == ("finished", 3)
    assert run.series["train/solved"].tolist() == [0.5, 0.75]
    assert run.validations == (Validation(0, 0, 0.25), Validation(2, 2, 0.5))
    # no seed, no paths, and what lies in the run directory reads alike for all runs
    assert run.settings == {"optimizer.lr": 0.1, "callbacks.a.dirpath": "/c"}
    assert run.choices == {"algorithm": "grpo"}


def test_without_a_summary_or_with_a_broken_one_it_is_unfinished(tmp_path):
    run = read_run(run_folder(tmp_path / "a", summary={}))
    assert (run.status, run.error) == ("unfinished", "")
    (tmp_path / "a/summary.json").write_text("{")
    (tmp_path / "a/config.yaml").write_text("a: [")
    run = read_run(tmp_path / "a")
    assert (run.status, run.settings, run.phases("train/solved")) == ("unfinished", {}, 2)


def test_a_failed_job_with_only_a_summary(tmp_path):
    run = read_run(failed_folder(tmp_path / "f", "lr: too\nlarge", ["seed=7", "optimizer.lr=9"]))
    assert (run.status, run.error, run.seed) == ("failed", "lr: too large", 7)
    assert (run.series, run.verdict, run.overrides) == ({}, None, ("optimizer.lr=9",))


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run"):
        read_run(tmp_path)


def test_rows_without_validations_with_nan_and_cut_short(tmp_path):
    folder = run_folder(tmp_path / "a", solved=(0.5, float("nan"), 0.25), validations=False)
    with (folder / "metrics.csv").open("a") as file:
        file.write("3,3,0.0,0.9")  # killed while writing
    run = read_run(folder)
    np.testing.assert_array_equal(run.series["train/solved"], [0.5, np.nan, 0.25])
    assert (run.validations, run.phases("train/solved")) == ((), 2)


def test_metrics_that_cannot_be_read_are_left_out_with_a_warning(tmp_path, caplog):
    folder = run_folder(tmp_path / "a")
    (folder / "metrics.csv").write_text("step,phase,train/loss,train/solved\n0,0,0.1,broken\n")
    run = read_run(folder)
    assert (run.status, run.series, run.validations) == ("finished", {}, ())
    assert "metrics.csv: row 1" in caplog.text


def test_a_run_that_began_from_a_checkpoint_keeps_its_phase_numbers(tmp_path):
    folder = run_folder(tmp_path / "a")
    (folder / "metrics.csv").write_text(
        "step,phase,train/loss,train/solved,val/solved\n"
        "10,5,0,0.5,\n11,5,0,,\n12,6,0,0.6,\n14,,,,0.7\n"
    )
    run = read_run(folder)
    np.testing.assert_array_equal(run.series["train/solved"], [np.nan] * 5 + [0.5, 0.6])
    assert run.validations == (Validation(14, 7, 0.7),)  # after phases 5 and 6
