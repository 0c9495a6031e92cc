"""Two processes on the CPU (gloo) against one: DDP and fully_shard, from the command line."""

import csv
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from safetensors.torch import load_file

from stabledrl.binding import locate
from stabledrl.config import build, register_resolvers
from tests.conftest import ROOT
from tests.training.small_runs import CLOCK, OVERRIDES, small

RUNS = "tests.training.small_runs"
COMMON = (
    *OVERRIDES,
    "~task",
    f"+task={{_target_: {RUNS}.Digits}}",
    "rollout.prompts_per_phase=8",
    "rollout.prompts_per_batch=2",
    "rollout.sampling_rows=5",
    "rollout.validation_prompts=5",
    "rollout.drift_every=1",
    "algorithm=stabledrl",
    "trainer.max_epochs=2",
    "extras.threads=1",
    f"+callbacks.saving={{_target_: {RUNS}.SavedGradients, directory: '${{paths.run_dir}}'}}",
)
TWO = ("trainer.accelerator=cpu", "trainer.devices=2", "trainer.deterministic=true")


def command(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """run.py with the run directory `folder`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "HYDRA"))}
    return subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *COMMON, f"hydra.run.dir={folder}", *overrides],
        cwd=folder.parent,
        env={**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def finished(folder: Path, *overrides: str) -> Path:
    """The directory of a run that has gone well and has said nothing twice."""
    done = command(folder, *overrides)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("wall time") == 1
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One process that accumulates two batches, two processes that take one each."""
    folder = tmp_path_factory.mktemp("processes")
    return {
        "one": finished(folder / "one", "trainer.accumulate_grad_batches=2"),
        "ddp": finished(folder / "ddp", "trainer=ddp", *TWO),
        "fsdp": finished(folder / "fsdp", "trainer=fsdp", *TWO),
    }


def rows(directory: Path) -> list[dict[str, float]]:
    with (directory / "metrics.csv").open(newline="") as file:
        return [
            {k: float(v) for k, v in row.items() if v and not k.startswith(CLOCK)}
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_are_one(runs, strategy):
    one, two = runs["one"], runs[strategy]
    gradients = [torch.load(run / "gradients.pt", weights_only=True) for run in (one, two)]
    assert len(gradients[0]) == len(gradients[1]) == 8  # 2 phases, 2 updates of 2 steps
    for whole, shared in zip(*gradients, strict=True):
        largest = float(whole.abs().max())
        assert largest > 1e-4
        torch.testing.assert_close(shared, whole, rtol=1e-5, atol=1e-5 * largest)
    for name in ("phase_00000.jsonl", "phase_00001.jsonl"):
        found = [(run / "completions" / name).read_text() for run in (one, two)]
        assert found[0] == found[1]
        assert found[0].count("\n") == 8 * 3
    for expected, row in zip(rows(one), rows(two), strict=True):
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-6)
    checkpoints = [
        torch.load(run / "checkpoints/last.ckpt", weights_only=True) for run in (one, two)
    ]
    assert checkpoints[0]["phase"] == checkpoints[1]["phase"] == 2
    for name, weights in checkpoints[0]["state_dict"].items():
        shared = checkpoints[1]["state_dict"][name]
        torch.testing.assert_close(shared, weights, rtol=1e-5, atol=1e-5)
    saved = [load_file(run / "model/model.safetensors") for run in (one, two)]
    assert saved[0].keys() == saved[1].keys()
    for name, weights in saved[0].items():
        torch.testing.assert_close(saved[1][name], weights, rtol=1e-5, atol=1e-5)


def test_the_first_process_leaves_what_a_single_one_does(runs):
    expected = {path.name for path in runs["one"].iterdir()}
    for name in ("ddp", "fsdp"):
        assert {path.name for path in runs[name].iterdir()} == expected
        summary = json.loads((runs[name] / "summary.json").read_text())
        alone = json.loads((runs["one"] / "summary.json").read_text())
        assert summary["status"] == "finished"
        assert summary["optimized_metric"] == pytest.approx(alone["optimized_metric"])


@pytest.mark.parametrize(
    ("left_by", "how"),
    [("fsdp", ("trainer.accumulate_grad_batches=2",)), ("one", ("trainer=fsdp", *TWO))],
)
def test_a_checkpoint_is_the_same_for_any_number_of_processes(runs, tmp_path, left_by, how):
    path = runs[left_by] / "checkpoints/phase_00000.ckpt"
    end = finished(tmp_path / "end", *how, f"ckpt_path={path}")
    expected = load_file(runs["one"] / "model/model.safetensors")
    found = load_file(end / "model/model.safetensors")
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=1e-5, atol=1e-5)


def test_one_broken_process_makes_all_skip(tmp_path):
    broken = f"+callbacks.broken={{_target_: {RUNS}.Broken}}"
    done = command(tmp_path / "run", "trainer=ddp", *TWO, broken, "trainer.max_epochs=1")
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run/run.log").read_text()
    assert log.count("skipped: the old likelihood is not finite") == 2  # the batch comes twice
    skipped = [row["guard/nonfinite_updates"] for row in rows(tmp_path / "run") if "phase" in row]
    assert skipped == [0, 1, 1, 2]


@pytest.mark.parametrize("option", ["cpu", "gpu", "ddp", "fsdp"])
def test_every_trainer_is_configured(tmp_path, option):
    trainer = small(tmp_path, f"trainer={option}").trainer
    assert trainer.max_epochs == 1  # of the small run
    assert trainer.accelerator == ("cpu" if option == "cpu" else "gpu")
    if option == "fsdp":
        assert build(trainer.strategy).shards
        assert locate(trainer.strategy._target_).shards


def test_slurm_gets_the_nodes_and_processes_of_the_trainer():
    register_resolvers()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        chosen = ["hydra/launcher=submitit_slurm", "trainer=fsdp", "trainer.devices=8"]
        cfg = compose("config", [*chosen, "trainer.num_nodes=4"], return_hydra_config=True)
    cfg.hydra.sweep.dir = "multirun/x"
    launcher = OmegaConf.to_container(cfg.hydra.launcher, resolve=True)
    assert launcher["nodes"] == 4
    assert launcher["tasks_per_node"] == launcher["gpus_per_node"] == 8
    assert launcher["submitit_folder"] == "multirun/x/.submitit/%j"
    assert launcher["name"] not in ("bash", "interactive")
    assert launcher["_target_"].endswith(".SlurmLauncher")


def test_slurm_settings_are_those_of_the_plugin():
    plugin = pytest.importorskip("hydra_plugins.hydra_submitit_launcher.config")
    ours = OmegaConf.load(ROOT / "conf/hydra/launcher/submitit_slurm.yaml")
    assert set(ours) <= {field.name for field in dataclasses.fields(plugin.SlurmQueueConf)}
