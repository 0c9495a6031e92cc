"""job=report and the report at the end of a multirun."""

import json
import sys

import pytest
from omegaconf import OmegaConf

from stabledrl.command_line import Report
from stabledrl.diagnostics.runs import IMMATERIAL
from stabledrl.errors import UserError
from stabledrl.fingerprint import IMMATERIAL as IMMATERIAL_IN_HASH
from stabledrl.jobs.comparison import JOB, compare, find_runs
from stabledrl.jobs.report import report
from tests.diagnostics.small_folders import failed_folder, run_folder
from tests.training.small_runs import small


@pytest.fixture
def sweep(tmp_path):
    """A multirun folder of two arms with two seeds, and a job that failed."""
    folder = tmp_path / "multirun" / "pair"
    for number, (lr, seed) in enumerate([(1, 0), (1, 1), (2, 0), (2, 1)]):
        run_folder(folder / f"{number}-x", seed, settings={"lr": lr})
    failed_folder(folder / "4-x", "broke", ["lr=3"])
    (folder / "0-x/checkpoints").mkdir()
    (folder / "0-x/checkpoints/config.yaml").touch()
    (folder / "multirun.yaml").touch()
    return folder


def names(paths):
    return [path.name for path in paths]


def test_runs_are_found_by_folder_glob_and_file_each_once(sweep, monkeypatch):
    everything = ["0-x", "1-x", "2-x", "3-x", "4-x"]
    assert names(find_runs([str(sweep.parent)])) == everything
    assert names(find_runs([f"{sweep}/[12]-x", f"{sweep}/2-x/", str(sweep / "1-x")])) == [
        "1-x",
        "2-x",
    ]
    assert names(find_runs([f"{sweep}/*/metrics.csv"])) == everything[:4]
    monkeypatch.chdir(sweep.parent)
    assert names(find_runs(["pair", "./pair/0-x", str(sweep / "0-x")])) == everything
    assert names(find_runs(["**/3-x"])) == ["3-x"]


def test_patterns_that_match_nothing_are_named(sweep, tmp_path):
    (tmp_path / "empty").mkdir()
    wanted = [str(sweep), f"{tmp_path}/none*", f"{tmp_path}/empty"]
    with pytest.raises(UserError) as told:
        find_runs(wanted)
    assert "none*" in str(told.value)
    assert "empty" in str(told.value)
    assert str(sweep) not in str(told.value)


def test_the_job(sweep, tmp_path, capsys):
    cfg = small(tmp_path / "job", "job=report", "job.runs=[x]")
    assert cfg.job.directory == str(tmp_path / "job")
    report(cfg, runs=[str(sweep)], arms=[], directory=str(tmp_path / "there"))
    assert "report.html" in capsys.readouterr().out
    text = (tmp_path / "there/report.md").read_text()
    assert "lr=1: collapsed in 0 of 2" in text
    assert "failed: broke" in text
    assert json.loads((tmp_path / "job/summary.json").read_text())["status"] == "finished"


def test_refused_in_one_line(sweep, tmp_path):
    cfg = small(tmp_path / "job", "job=report")
    with pytest.raises(UserError, match=r"job\.runs is empty"):
        report(cfg, runs=[], arms=[], directory=str(tmp_path))
    failed = failed_folder(tmp_path / "f", "broke")
    with pytest.raises(UserError, match=r"report: no arm matches 'x'; arms: lr=1; lr=2"):
        compare(find_runs([str(sweep)]), tmp_path, "x", arms=["x"])
    with pytest.raises(UserError, match="no finished run among 1"):
        compare([failed], tmp_path, "x")


def test_reports_are_not_compared(sweep, tmp_path):
    own = run_folder(tmp_path / "report", settings={"job": {"_target_": JOB}})
    compare([*find_runs([str(sweep)]), own], tmp_path, "x")
    assert str(own) not in (tmp_path / "report.md").read_text()


def test_what_makes_no_other_hash_makes_no_other_arm():
    assert set(IMMATERIAL_IN_HASH) < IMMATERIAL


def multirun(folder, **extras):
    return OmegaConf.create({"hydra": {"sweep": {"dir": str(folder)}}, "extras": extras})


def test_a_multirun_ends_with_a_report(sweep, capsys):
    Report().on_multirun_end(multirun(sweep))
    assert capsys.readouterr().out == f"report: {sweep}/report.html\n"
    # and the next one reads the same runs: a report is none
    Report().on_multirun_end(multirun(sweep, report=True))
    assert (sweep / "report.md").read_text().startswith("# Multirun pair\n")


def test_no_report_where_none_is_wanted_or_there_is_nothing(sweep, tmp_path, capsys):
    Report().on_multirun_end(multirun(sweep, report=False))
    Report().on_multirun_end(multirun(tmp_path / "nowhere"))
    assert not list(sweep.glob("report*"))
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_a_report_that_fails_costs_one_line(sweep, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "stabledrl.jobs.comparison", None)  # import fails
    Report().on_multirun_end(multirun(sweep))
    told = capsys.readouterr().err
    assert told.startswith(f"warning: no report of {sweep}: ")
    assert told.count("\n") == 1
