"""The command line as a user meets it: exit codes, one-line errors, multiruns, speed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stabledrl.command_line import report
from stabledrl.errors import ConfigurationError, UserError
from stabledrl.explanations import explain
from tests.conftest import ROOT


def summaries(directory: Path) -> dict[int, dict]:
    """Status per job number of the one multirun below a directory."""
    return {
        int(path.parent.name.split("-")[0]): json.loads(path.read_text())
        for path in directory.glob("multirun/*/*/summary.json")
    }


def test_what_a_resolver_refuses_is_told_in_its_own_words():
    def refuse() -> None:
        raise UserError("ckpt_path=last: no such run")

    OmegaConf.register_new_resolver("refuse", refuse)
    with pytest.raises(OmegaConfBaseException) as wrapped:
        OmegaConf.to_container(OmegaConf.create({"dir": "${refuse:}"}), resolve=True)
    assert explain(wrapped.value) == "ckpt_path=last: no such run"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("clipping.epsilonn=0.2", "clipping.epsilonn: unknown key; did you mean 'epsilon'?"),
        ("cliping=conditional", "cliping: unknown key; did you mean 'clipping'?"),
        (
            "model=tiny_sudok",
            "model=tiny_sudok: no such option; did you mean 'tiny_sudoku'? (options: tiny_sudoku)",
        ),
        ("experiment=nope", "experiment=nope: no such option (the group is empty)"),
        ("seed=[1", "cannot read 'seed=[1': no viable alternative at input '[1'"),
        ("+seed=1", "Could not append to config. An item is already at 'seed'."),
        ("~nothing", "Could not delete from config. 'nothing' does not exist."),
        ("seed.x=1", "seed.x: "),
    ],
)
def test_composition_errors_are_one_line(house, override, expected):
    with (
        initialize_config_dir(str(house), version_base="1.3"),
        pytest.raises((HydraException, OmegaConfBaseException)) as caught,
    ):
        compose("config", [override])
    line = explain(caught.value)
    assert line.startswith(expected)
    assert "\n" not in line


def test_broken_interpolations_are_one_line():
    with pytest.raises(Exception, match="nowhere") as caught:
        OmegaConf.to_container(OmegaConf.create({"a": "${nowhere}"}), resolve=True)
    assert explain(caught.value) == "a: Interpolation key 'nowhere' not found"


def test_a_typo_exits_with_one_line_and_no_traceback(run, tmp_path):
    done = run("clipping.epsilonn=0.2")
    assert done.returncode == 1
    assert done.stderr == "error: clipping.epsilonn: unknown key; did you mean 'epsilon'?\n"
    assert done.stdout == ""
    assert not (tmp_path / "outputs").exists()


def test_faults_are_listed_together(run):
    done = run("+foo=1", "rollout.group_size=1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: 2 faults in the configuration\n  1. foo: unknown key")
    assert "Traceback" not in done.stderr


def test_a_run_leaves_its_log_and_config(run, tmp_path):
    done = run("seed=3")
    assert (done.returncode, done.stderr) == (0, "")
    [summary] = tmp_path.glob(
        "outputs/train/stabledrl_positive-sudoku-tiny_sudoku-s3/*/summary.json"
    )
    assert (summary.parent / ".hydra" / "config.yaml").exists()
    assert (summary.parent / "run.log").exists()
    assert "=" not in str(summary.relative_to(tmp_path))


def test_a_crash_is_one_line_and_its_traceback_is_in_the_log(run, tmp_path):
    done = run("+job.fail_at=0")
    assert done.returncode == 1
    expected = "error: RuntimeError: something broke (HYDRA_FULL_ERROR=1 shows the traceback)\n"
    assert done.stderr == expected
    [log] = tmp_path.glob("outputs/*/*/*/run.log")
    assert "Traceback" in log.read_text()
    summary = json.loads((log.parent / "summary.json").read_text())
    assert summary == {"status": "failed", "error": "RuntimeError: something broke"}


def test_a_traceback_for_those_who_ask(run):
    done = run("+job.fail_at=0", HYDRA_FULL_ERROR="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("error: RuntimeError: something broke\n")


def test_an_interrupt_is_quiet(run):
    done = run("seed=99")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    several = run("-m", "seed=99,1")
    assert (several.returncode, several.stderr) == (130, "")


def test_a_failed_job_does_not_stop_a_multirun_which_continues_when_repeated(run, tmp_path):
    command = ("-m", "seed=1,2,3", "+job.fail_at=2")
    done = run(*command)
    assert done.returncode == 1
    assert "failed jobs: 1" in done.stderr
    status = {number: summary["status"] for number, summary in summaries(tmp_path).items()}
    assert status == {0: "finished", 1: "failed", 2: "finished"}
    again = run(*command)
    assert again.returncode == 1
    assert again.stdout.count("skipped, already finished") == 2
    assert [len(p.read_text().split()) for p in tmp_path.glob("multirun/*/*/runs.txt")] == [1, 1]


def test_a_named_sweep_needs_no_m(run, write, tmp_path):
    text = "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '4,5'}}}\n"
    write("sweeps/pair.yaml", text)
    done = run("sweeps=pair")
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "multirun" / "pair").glob("*-*"))
    assert [name.split("-")[0] for name in names] == ["0", "1"]


def imported(*arguments: str) -> set[str]:
    """Top-level packages that run.py imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(ROOT / "run.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}


@pytest.mark.parametrize("arguments", [("--help",), ("--cfg", "job", "--resolve")])
def test_questions_import_nothing_heavy(arguments):
    assert not imported(*arguments) & {"torch", "lightning", "transformers", "wandb", "pydantic"}


def test_help_lists_jobs_and_every_group():
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), "--help"], capture_output=True, text=True, check=True
    )
    for group in (ROOT / "conf").iterdir():
        assert not any(group.glob("*.yaml")) or f"\n  {group.name} " in done.stdout
    assert "job=NAME" in done.stdout


def test_the_error_of_a_user_is_reported_as_it_is(capsys, tmp_path):
    log = tmp_path / "run.log"
    assert report(UserError("no such file: x"), log) == "no such file: x"
    assert capsys.readouterr().err == "error: no such file: x\n"
    assert log.read_text() == "error: no such file: x\n"
    assert explain(ConfigurationError(["a", "b"])).count("\n") == 2


def test_a_launcher_without_its_plugin_is_told_by_name():
    error = RuntimeError(
        "Unknown plugin class : 'hydra_plugins.hydra_submitit_launcher.submitit_launcher.Slurm'"
    )
    line = "hydra/launcher: its plugin is not installed: pip install hydra-submitit-launcher"
    assert explain(error) == line
