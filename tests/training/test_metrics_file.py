"""metrics.csv: rows are appended, columns may come later, a resumed run cuts and goes on."""

from pathlib import Path

import pytest

from stabledrl.training.metrics_file import MetricsFile


def text(folder: Path) -> list[str]:
    return (folder / "metrics.csv").read_text().splitlines()


def logged(folder: Path, *entries: tuple[int, dict[str, float]]) -> MetricsFile:
    """A file with one row per entry, saved one by one."""
    file = MetricsFile(str(folder))
    for step, metrics in entries:
        file.log_metrics(metrics, step)
        file.save()
    return file


TRAINING = [(step, {"train/loss": step / 8, "epoch": 0.0}) for step in range(4)]
VALIDATION = {"val/solved": 0.5, "epoch": 0.0}


def test_rows_are_appended_without_the_epoch(tmp_path):
    logged(tmp_path, *TRAINING[:2])
    assert text(tmp_path) == ["step,train/loss", "0,0.0", "1,0.125"]


def test_an_empty_row_is_none(tmp_path):
    logged(tmp_path, (0, {"epoch": 1.0}))
    assert not (tmp_path / "metrics.csv").exists()


def test_what_is_pending_is_written_at_the_end(tmp_path):
    file = MetricsFile(str(tmp_path / "new" / "folder"))
    file.log_metrics({"a": 1.0}, 3)
    file.finalize("success")
    assert text(tmp_path / "new" / "folder") == ["step,a", "3,1.0"]


def test_a_new_column_rewrites_the_file(tmp_path):
    logged(tmp_path, TRAINING[0], (1, VALIDATION), TRAINING[1], (2, {"a": float("nan")}))
    assert text(tmp_path) == [
        "step,a,train/loss,val/solved",
        "0,,0.0,",
        "1,,,0.5",
        "1,,0.125,",
        "2,nan,,",
    ]


def test_resuming_cuts_at_the_step_and_keeps_the_validation_made_there(tmp_path):
    before = [TRAINING[0], TRAINING[1], (2, VALIDATION)]
    logged(tmp_path, *before, TRAINING[2], TRAINING[3], (4, VALIDATION))
    file = MetricsFile(str(tmp_path))
    file.resume(2)
    assert text(tmp_path) == ["step,train/loss,val/solved", "0,0.0,", "1,0.125,", "2,,0.5"]
    file.log_metrics({"train/loss": 9.0}, 2)
    file.save()
    assert text(tmp_path)[-2:] == ["2,,0.5", "2,9.0,"]


def test_resuming_keeps_every_digit(tmp_path):
    values = {"train/loss": 0.1 + 0.2, "b": 1e-45, "c": float("inf"), "d": 5.0}
    logged(tmp_path, (0, values))
    before = text(tmp_path)
    MetricsFile(str(tmp_path)).resume(1)
    assert text(tmp_path) == before


@pytest.mark.parametrize("cut", range(2, 13))
def test_a_half_written_last_row_is_dropped_wherever_it_was_cut(tmp_path, cut):
    logged(tmp_path, TRAINING[0], (1, {"train/loss": 0.25, "val": 0.125}))
    path = tmp_path / "metrics.csv"
    whole = path.read_bytes()
    assert whole.endswith(b"1,0.25,0.125\r\n")
    path.write_bytes(whole[:-cut])
    MetricsFile(str(tmp_path)).resume(5)
    assert text(tmp_path) == ["step,train/loss", "0,0.0"]


def test_resuming_without_a_file_begins_one(tmp_path):
    file = MetricsFile(str(tmp_path))
    file.resume(7)
    file.log_metrics({"a": 1.0}, 7)
    file.save()
    assert text(tmp_path) == ["step,a", "7,1.0"]


def test_other_files_of_the_directory_are_left_alone(tmp_path):
    (tmp_path / "notes.csv").write_text("mine")
    (tmp_path / "checkpoints").mkdir()
    logged(tmp_path, *TRAINING)
    MetricsFile(str(tmp_path)).resume(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoints",
        "metrics.csv",
        "notes.csv",
    ]
    assert (tmp_path / "notes.csv").read_text() == "mine"


def test_a_run_that_does_not_resume_begins_anew(tmp_path):
    logged(tmp_path, *TRAINING)
    logged(tmp_path, (0, {"a": 1.0}))
    assert text(tmp_path) == ["step,a", "0,1.0"]
