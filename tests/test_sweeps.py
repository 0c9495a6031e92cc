"""Sweeps that go wrong: what is lost, what is said, and what the same command does next."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, Run

SEEDS = ("-m", "seed=1,2,3,4", "job._target_=tests.fake_components.fragile_job")
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
LAST_WORDS = {
    "raise": "RuntimeError: something broke",
    "exit": "the job's process ended with exit code 3 and left no result",
    "die": "the job's process was killed by SIGKILL, "
    "which is how the system ends what takes too much memory",
}


def jobs(directory: Path) -> dict[int, Path]:
    """Directories of the one multirun below a directory, by seed."""
    found = directory.glob("multirun/*/*-*")
    return {int(path.name.split("-")[0]) + 1: path for path in found}


def status(job: Path) -> str | None:
    """What the summary says, None without one."""
    path = job / "summary.json"
    return json.loads(path.read_text())["status"] if path.exists() else None


def starts(directory: Path) -> dict[int, int]:
    """How often each job was begun."""
    found = {seed: job / "starts.txt" for seed, job in jobs(directory).items()}
    return {seed: len(path.read_text().split()) for seed, path in found.items() if path.exists()}


@pytest.mark.parametrize(
    ("launcher", "end"), [(JOBLIB, "raise"), (JOBLIB, "exit"), (JOBLIB, "die"), ((), "die")]
)
def test_one_failure_costs_one_job_and_a_restart_runs_that_job_alone(run, tmp_path, launcher, end):
    done = run(*SEEDS, *launcher, ENDS=f"2={end}")
    assert done.returncode == 1
    broken = jobs(tmp_path)[2]
    assert {seed: status(job) for seed, job in jobs(tmp_path).items()} == {
        1: "finished",
        2: "failed",
        3: "finished",
        4: "finished",
    }
    assert json.loads((broken / "summary.json").read_text())["error"] == LAST_WORDS[end]
    named = broken.relative_to(tmp_path)
    assert done.stderr.endswith(f"error: failed jobs: 1\n  {named}: {LAST_WORDS[end]}\n")
    assert "Traceback" not in done.stderr
    again = run(*SEEDS, *launcher)
    assert (again.returncode, again.stderr) == (0, "")
    assert starts(tmp_path) == {1: 1, 2: 2, 3: 1, 4: 1}
    assert {status(job) for job in jobs(tmp_path).values()} == {"finished"}


@pytest.mark.parametrize(("launcher", "end"), [(JOBLIB, "raise"), ((), "raise"), ((), "die")])
def test_a_result_outlives_what_goes_wrong_after_it(run, tmp_path, launcher, end):
    done = run(*SEEDS, *launcher, ENDS=f"2=late_{end}")
    kept = json.loads((jobs(tmp_path)[2] / "summary.json").read_text())
    assert kept == {"status": "finished", "optimized_metric": 2, "error": LAST_WORDS[end]}
    assert done.returncode == 1
    assert done.stderr.count(f"error: {LAST_WORDS[end]}") == 1
    assert "failed jobs: 1\n" in done.stderr
    again = run(*SEEDS, *launcher)
    assert (again.returncode, again.stderr) == (0, "")
    assert starts(tmp_path) == {1: 1, 2: 1, 3: 1, 4: 1}


def test_a_stale_result_does_not_hide_that_its_job_failed_this_time(run, tmp_path):
    anew = ("-m", "seed=2", SEEDS[2], "extras.skip_finished=false")
    assert run(*anew).returncode == 0
    done = run(*anew, ENDS="2=raise")
    assert done.returncode == 1
    [path] = tmp_path.glob("multirun/*/*-*/summary.json")
    assert json.loads(path.read_text()) == {"status": "failed", "error": LAST_WORDS["raise"]}


def test_a_single_run_keeps_its_result_too(run, tmp_path):
    done = run("seed=2", SEEDS[2], ENDS="2=late_raise")
    assert done.returncode == 1
    [path] = tmp_path.glob("outputs/*/*/*/summary.json")
    kept = {"status": "finished", "optimized_metric": 2, "error": LAST_WORDS["raise"]}
    assert json.loads(path.read_text()) == kept


def test_a_half_finished_sweep_goes_on_with_what_is_missing(run, tmp_path):
    assert run(*SEEDS, *JOBLIB).returncode == 0
    (jobs(tmp_path)[1] / "summary.json").unlink()  # killed at work
    (jobs(tmp_path)[3] / "summary.json").write_text('{"status": "fini')  # and while it was written
    again = run(*SEEDS, *JOBLIB)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.count("skipped, already finished") == 2
    assert starts(tmp_path) == {1: 2, 2: 1, 3: 2, 4: 1}
    assert {status(job) for job in jobs(tmp_path).values()} == {"finished"}


def alive(process: int) -> bool:
    """Whether a process is still there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(condition, seconds: float = 30) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux about processes")
@pytest.mark.parametrize("launcher", [(), JOBLIB], ids=["one process", "joblib"])
def test_a_killed_command_leaves_nobody_at_work(run: Run, house, tmp_path, launcher):
    at_work = 2 if launcher else 1
    command = subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), f"--config-path={house}", *SEEDS, *launcher],
        cwd=tmp_path,
        env={**os.environ, "ENDS": "1=sleep 2=sleep"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: sum(starts(tmp_path).values()) == at_work)
    command.kill()
    command.wait()
    begun = [jobs(tmp_path)[seed] / "starts.txt" for seed in starts(tmp_path)]
    until(lambda: not any(alive(int(path.read_text())) for path in begun), 10)
    time.sleep(1)  # in which orphaned workers would go on with the jobs in their queue
    assert sum(starts(tmp_path).values()) == at_work
    again = run(*SEEDS, *launcher)
    assert (again.returncode, again.stderr) == (0, "")
    assert starts(tmp_path) == {seed: 2 if seed <= at_work else 1 for seed in (1, 2, 3, 4)}
