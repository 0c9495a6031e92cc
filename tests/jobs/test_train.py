"""The main job as a user runs it: what it leaves, and that a kill costs nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from stabledrl.models.tiny import load
from tests.conftest import ROOT
from tests.training.small_runs import rows

SMOKE = ("experiment=smoke", "trainer.max_epochs=4", "extras.threads=1")
RUN = "train/stabledrl_positive-sudoku-tiny_sudoku-s0"


def command(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    """run.py without account, home directory or terminal."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "HYDRA", "XDG"))}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *SMOKE, f"paths.output_dir={folder}", *overrides],
        cwd=folder,
        env={**kept, "HOME": "/proc/none", "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Directory, stdout and stderr of a run of four phases without a break."""
    folder = tmp_path_factory.mktemp("straight")
    process = command(folder)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    [directory] = folder.glob(f"{RUN}/*")
    return directory, output, errors


def test_a_run_leaves_everything_and_no_traceback(straight):
    directory, output, errors = straight
    assert {path.name for path in directory.iterdir()} == {
        ".hydra",
        "checkpoints",
        "completions",
        "config.yaml",
        "metrics.csv",
        "model",
        "run.log",
        "summary.json",
        "wandb",
    }
    assert errors == ""
    for told in (output, (directory / "run.log").read_text()):
        assert "Traceback" not in told
        assert "Warning" not in told
    names = sorted(path.name for path in (directory / "completions").iterdir())
    assert names == ["phase_00000.jsonl", "phase_00002.jsonl"]
    records = (directory / "completions/phase_00000.jsonl").read_text().splitlines()
    assert len(records) == 4 * 8
    assert all("reward" in json.loads(record) for record in records)
    names = sorted(path.name for path in (directory / "checkpoints").iterdir())
    assert names == ["best.ckpt", "last.ckpt", "phase_00002.ckpt", "phase_00003.ckpt"]
    assert list(directory.glob("wandb/offline-run-*/*.wandb"))


def test_the_terminal_shows_configuration_completions_and_results(straight):
    directory, output, _ = straight
    told = "".join(output.replace("│", "").split())  # the frame of the panel may break a path
    for part in (
        "configuration",
        "phase 0: sampled completions",
        "results",
        "held-out solve rate",
        "updates16",
        f"{directory}/model",
    ):
        assert "".join(part.split()) in told


def test_metrics_are_whole(straight):
    found = rows(straight[0])
    updates = [row for row in found if "train/loss" in row]
    assert [int(row["step"]) for row in updates] == list(range(16))
    assert [int(row["step"]) for row in found if "val/solved" in row] == [0, 8, 16]
    assert [row["step"] for row in updates if "train/reward" in row] == ["0", "4", "8", "12"]
    for row in updates:  # no gradient exactly where no group has any spread of rewards
        if "train/frac_zero_std" in row:  # the first update of a phase
            spread = float(row["train/frac_zero_std"]) < 1
        assert (float(row["train/grad_norm"]) > 0) == spread


def test_the_summary_tells_how_it_went(straight):
    summary = json.loads((straight[0] / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert set(summary["metrics"]) == {"start", "best", "final", "validations"}
    assert summary["optimized_metric"] == summary["metrics"]["final"]["val/solved"]
    assert {"train/loss", "train/reward", "val/solved"} <= set(summary["metrics"]["final"])
    assert {"rollout", "grading", "validation", "fit", "total"} == set(summary["seconds"])
    assert {"python", "torch", "lightning", "transformers", "wandb"} <= set(summary["versions"])
    assert {"seed", "config_hash", "git_commit", "threads", "machine"} <= set(summary)


def test_the_policy_is_an_ordinary_model(straight):
    folder = straight[0] / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)
    ours = load(str(folder))
    for name, value in model.state_dict().items():
        assert value.equal(ours.backbone.state_dict()[name])


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["first", "second", "third"])
def test_killed_without_warning_and_resumed_it_is_the_same_run(straight, tmp_path, kill):
    process = command(tmp_path, "logger=csv", "extras.print_config=false")
    end = time.monotonic() + 200
    # once there is a checkpoint to go on from, any moment of the rest will do
    while not list(tmp_path.glob(f"{RUN}/*/checkpoints/last.ckpt")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
    summary = json.loads((straight[0] / "summary.json").read_text())
    delay = random.SystemRandom().uniform(0, summary["seconds"]["fit"] / 2)
    print(f"killed {delay:.3f} s after the first checkpoint")
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    [directory] = tmp_path.glob(f"{RUN}/*")
    assert not (directory / "summary.json").exists()
    process = command(tmp_path, "logger=csv", "ckpt_path=last")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert [directory] == list(tmp_path.glob(f"{RUN}/*"))
    assert rows(directory) == rows(straight[0])
    weights = [
        (folder / "model/model.safetensors").read_bytes() for folder in (directory, straight[0])
    ]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_the_same_seed_twice_gives_the_same_numbers(straight, tmp_path):
    process = command(tmp_path)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    [directory] = tmp_path.glob(f"{RUN}/*")
    assert rows(directory) == rows(straight[0])
