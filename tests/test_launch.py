"""Processes that are started together: what they know, and that they end together."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stabledrl.errors import ConfigurationError, UserError
from stabledrl.explanations import explain
from stabledrl.launch import ProcessFailed, is_first, started_by_others, together
from tests.conftest import ROOT

TOLD = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR")


@pytest.fixture(autouse=True)
def _nobody_else(monkeypatch):
    for name in (*TOLD, "MASTER_PORT", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NAME"):
        monkeypatch.delenv(name, raising=False)


def start(job, directory, nodes=1):
    return together(job, 2, directory, explain, nodes)


def test_processes_know_their_place_and_the_first_one_answers(tmp_path):
    def job():
        rank = int(os.environ["RANK"])
        known = {name: os.environ[name] for name in (*TOLD, "MASTER_PORT")}
        (tmp_path / f"{rank}.json").write_text(json.dumps([known, is_first()]))
        return 0.5 + rank

    assert start(job, tmp_path) == 0.5
    places = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [first for _, first in places] == [True, False]
    ports = {known.pop("MASTER_PORT") for known, _ in places}
    assert len(ports) == 1
    assert [tuple(known.values()) for known, _ in places] == [
        ("0", "0", "0", "2", "127.0.0.1"),
        ("1", "1", "0", "2", "127.0.0.1"),
    ]
    assert "RANK" not in os.environ
    assert not list(tmp_path.glob("*.log"))  # nobody said anything


def test_nodes_count_their_processes_from_the_node(tmp_path, monkeypatch):
    monkeypatch.setenv("NODE_RANK", "1")

    def job():
        (tmp_path / os.environ["LOCAL_RANK"]).write_text(
            f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
        )
        return None

    assert start(job, tmp_path, nodes=3) is None
    assert [(tmp_path / name).read_text() for name in "01"] == ["2 of 6", "3 of 6"]


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (UserError("no such file"), UserError, "no such file"),
        (ConfigurationError(["a: wrong"]), ConfigurationError, "a: wrong"),
        (ValueError("odd"), ProcessFailed, "ValueError: odd"),
    ],
)
def test_the_failure_of_one_ends_all(tmp_path, error, kind, line):
    def job():
        if not is_first():
            raise error
        time.sleep(60)
        return 1.0

    began = time.monotonic()
    with pytest.raises(kind) as raised:
        start(job, tmp_path)
    assert str(raised.value) == line
    assert time.monotonic() - began < 10


def test_a_process_that_is_killed_is_named(tmp_path):
    def job():
        if not is_first():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        return 1.0

    with pytest.raises(UserError, match=r"^process 1 of 2: .* killed by SIGKILL"):
        start(job, tmp_path)


TALK = """
import os, sys
from pathlib import Path
from stabledrl.explanations import explain
from stabledrl.launch import together
print(together(lambda: print("I am", os.environ["RANK"]), 2, Path(sys.argv[1]), explain))
"""


def test_what_others_print_is_kept_apart(tmp_path):
    command = [sys.executable, "-c", TALK, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "I am 0\nNone\n"
    assert (tmp_path / "process_1.log").read_text() == "I am 1\n"


SCRIPT = """
import signal, sys, time
from pathlib import Path
from stabledrl.explanations import explain
from stabledrl.launch import together
import os
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
def job():
    Path(sys.argv[1], os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(60)
try:
    together(job, 2, Path(sys.argv[1]), explain)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_command_that_is_stopped_leaves_nobody_behind(tmp_path, stop, code):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True
    )
    places = [tmp_path / "0", tmp_path / "1"]
    assert _within(30, lambda: all(path.exists() and path.read_text() for path in places))
    members = [int(path.read_text()) for path in places]
    if stop == signal.SIGINT:  # as a terminal does: to all of them
        os.killpg(process.pid, stop)
    else:
        process.kill()
    assert process.wait(15) == code
    assert _within(10, lambda: not any(_is_running(member) for member in members))


def _within(seconds, true):
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _is_running(number):
    stat = Path(f"/proc/{number}/stat")
    try:
        return stat.read_text().rsplit(")")[-1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("environment", "others"),
    [
        ({}, False),
        ({"LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": "0", "STABLEDRL_STARTED": "1"}, False),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, True),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_NAME": "bash"}, False),
        ({"SLURM_NTASKS": "1"}, False),
    ],
    ids=str,
)
def test_who_has_started_a_process(monkeypatch, environment, others):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert started_by_others() == others


def test_commands_that_others_start_are_told_one_directory(run, tmp_path):
    for environment, overrides in (
        ({"LOCAL_RANK": "0"}, ["trainer.devices=2"]),
        ({}, ["trainer.devices=2", "+trainer.num_nodes=2"]),
    ):
        done = run(*overrides, **environment)
        assert done.returncode == 1
        assert done.stderr.startswith("error: hydra.run.dir: processes that several commands start")
        assert done.stderr.count("\n") == 1
    silent = run("trainer.devices=2", LOCAL_RANK="1")
    assert (silent.returncode, silent.stderr) == (1, "")  # rank 0 has said it
    done = run(f"hydra.run.dir={tmp_path / 'together'}", "trainer.devices=2", LOCAL_RANK="0")
    assert done.returncode == 0, done.stderr


def test_the_jobs_of_a_multirun_have_processes_too(run, tmp_path):
    done = run("-m", "seed=1,2", "trainer.devices=2")
    assert done.returncode == 0, done.stderr
    ran = [path.read_text() for path in (tmp_path / "multirun").glob("*/*/runs.txt")]
    assert ran == ["ran\nran\n"] * 2  # both processes, of both jobs
    assert run("-m", "seed=1,2", "trainer.devices=2").returncode == 0
    again = [path.read_text() for path in (tmp_path / "multirun").glob("*/*/runs.txt")]
    assert again == ran  # finished: passed over


def test_a_fault_of_the_configuration_is_told_once(run):
    done = run("trainer.devices=2", "seed=-1")
    assert done.returncode == 1
    assert done.stderr.count("error:") == 1
    assert "seed" in done.stderr
