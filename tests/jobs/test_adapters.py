"""Whole jobs with an adapter: train, resume, reference, export, evaluate; and other precisions."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from safetensors.torch import load_file, save_file

from stabledrl.config import validate
from stabledrl.errors import ConfigurationError, UserError
from stabledrl.jobs.evaluate import evaluate
from stabledrl.jobs.policies import build_policy
from stabledrl.jobs.pretrain import pretrain
from stabledrl.jobs.train import train
from stabledrl.models import adapter
from tests.conftest import ROOT
from tests.jobs.test_published_checkpoints import GOLDEN, GREEDY, configured, published
from tests.training.small_runs import OVERRIDES, rows, small

LLADA = GOLDEN / "llada"
LORA = ("adapter=lora", "adapter.rank=2", "adapter.alpha=4")
REFERENCE = ("kl=k2", "kl.coefficient=0.1", "rollout.drift_every=1")
LONGER = ("trainer.max_epochs=2", "scheduler=constant")


def lora(directory: Path, *overrides: str, option: str = "llada_8b", path: Path = LLADA):
    return configured(directory, option, path, *LORA, *overrides)


def newest(directory: Path) -> Path:
    return sorted((directory / "checkpoints").glob("phase_*.ckpt"))[-1]


def numbers(directory: Path, key: str) -> list[float]:
    return [float(row[key]) for row in rows(directory) if key in row]


@pytest.mark.parametrize("option", ["llada_8b", "dream_7b", "sdar_8b", "masked_lm"])
def test_an_adapter_trains_and_the_rest_stays(option, tmp_path):
    path = published(option, tmp_path)
    train(lora(tmp_path / "run", *LONGER, option=option, path=path))
    assert all(norm > 0 for norm in numbers(tmp_path / "run", "train/grad_norm"))
    before, after = (load_file(p / "model.safetensors") for p in (path, tmp_path / "run/model"))
    assert {n: v.shape for n, v in before.items()} == {n: v.shape for n, v in after.items()}
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved
    assert not any("emb" in name or "norm" in name.lower() or "wte" in name for name in moved)
    state = torch.load(newest(tmp_path / "run"), weights_only=True)["state_dict"]
    assert state
    assert all(".lora_" in name for name in state)
    assert newest(tmp_path / "run").stat().st_size < 300_000
    factors = load_file(tmp_path / "run/adapter/adapter_model.safetensors")
    assert len(factors) == len(state)
    settings = json.loads((tmp_path / "run/adapter/adapter_config.json").read_text())
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 2, 4)
    again = configured(tmp_path / "eval", option, tmp_path / "run/model", "job=evaluate")
    assert evaluate(again, split="test", prompts=2, **GREEDY) is not None


def test_a_resumed_run_with_a_reference_equals_one_without_interruption(tmp_path):
    whole, half = tmp_path / "whole", tmp_path / "half"
    train(lora(whole, *REFERENCE, *LONGER))
    train(lora(half, *REFERENCE, "trainer.max_epochs=1", "scheduler=constant"))
    train(lora(half, *REFERENCE, *LONGER, "ckpt_path=last"))
    # at first it is its reference, bit for bit; what training started from stays it when resumed
    drift = numbers(whole, "train/drift/reference")
    assert len(drift) == 2
    assert drift[0] == 0 != drift[1]
    updates = [[row for row in rows(it) if "train/loss" in row] for it in (whole, half)]
    assert updates[0] == updates[1]
    for name in ("adapter/adapter_model.safetensors", "model/model.safetensors"):
        one, other = (load_file(place / name) for place in (whole, half))
        assert all(one[key].equal(other[key]) for key in one)


def copied(source: Path, folder: Path, change: float) -> Path:
    """The checkpoint with other weights."""
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = {
        name: value + change for name, value in load_file(source / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_checkpoint_of_another_model_or_adapter_is_refused(tmp_path):
    train(lora(tmp_path / "lora"))
    checkpoint = f"ckpt_path={newest(tmp_path / 'lora')}"
    other = copied(LLADA, tmp_path / "other", 1e-3)
    refused = "^ckpt_path: this checkpoint is of another model or adapter, "
    cases = {
        "42 weights differ in name or shape, policy.backbone": lora(
            tmp_path / "1", "adapter.rank=3", *LONGER, checkpoint
        ),
        "weights differ in name or shape, policy.backbone": configured(
            tmp_path / "2", "llada_8b", LLADA, *LONGER, checkpoint
        ),
    }
    for words, cfg in cases.items():
        with pytest.raises(UserError, match=refused + ".*" + words):
            train(cfg)
    train(configured(tmp_path / "whole", "llada_8b", LLADA))
    with pytest.raises(UserError, match=refused):
        train(lora(tmp_path / "3", *LONGER, f"ckpt_path={newest(tmp_path / 'whole')}"))
    with pytest.raises(UserError, match=r"trained on other weights than those of model\.path$"):
        train(lora(tmp_path / "4", *LONGER, checkpoint, path=other))


def test_an_adapter_is_warm_started_on_solutions(tmp_path):
    cfg = lora(tmp_path, "job=pretrain", "job.batch_size=4", "job.steps_per_epoch=2")
    pretrain(cfg, **{k: v for k, v in cfg.job.items() if not k.startswith("_")})
    assert (tmp_path / "adapter/adapter_model.safetensors").is_file()
    before, after = (load_file(p / "model.safetensors") for p in (LLADA, tmp_path / "model"))
    assert any(not before[name].equal(after[name]) for name in before)


def test_on_a_model_in_bfloat16(tmp_path):
    cfg = lora(tmp_path, *REFERENCE, *LONGER)
    cfg.model.dtype = "bfloat16"
    train(cfg)
    assert numbers(tmp_path, "train/drift/reference")[0] == 0
    state = torch.load(newest(tmp_path), weights_only=True)["state_dict"]
    assert {value.dtype for value in state.values()} == {torch.float32}
    assert all(value.any() for name, value in state.items() if ".lora_B." in name)
    saved = load_file(tmp_path / "model/model.safetensors")
    assert {value.dtype for value in saved.values()} == {torch.bfloat16}


def test_mixed_precision_samples_and_scores_as_it_updates(tmp_path):
    mixed = ("trainer.precision=bf16-mixed", "masking.pairing=shared", *REFERENCE)
    train(configured(tmp_path / "mixed", "llada_8b", LLADA, *mixed))
    [noise] = numbers(tmp_path / "mixed", "train/ratio/noise_std")
    assert noise == 0  # the same masks and the same precision on both sides of the ratio
    assert numbers(tmp_path / "mixed", "train/drift/reference") == [0]
    train(configured(tmp_path / "single", "llada_8b", LLADA, mixed[1], *REFERENCE))
    assert rows(tmp_path / "single") != rows(tmp_path / "mixed")
    saved = load_file(tmp_path / "mixed/model/model.safetensors")
    assert {value.dtype for value in saved.values()} == {torch.float32}


def test_activation_checkpointing_changes_no_number(tmp_path):
    train(configured(tmp_path / "plain", "llada_8b", LLADA))
    switch = "acceleration.activation_checkpointing=true"
    train(configured(tmp_path / "again", "llada_8b", LLADA, switch))
    assert rows(tmp_path / "plain") == rows(tmp_path / "again")


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["adapter.rank=0"], "adapter.rank=0: should be greater than 0"),
        (["adapter.rank=a"], "adapter.rank='a': should be a valid integer"),
        (["adapter.alpha=0"], "adapter.alpha=0: should be greater than 0"),
        (["adapter.dropout=1"], "adapter.dropout=1: should be less than 1"),
        (["+adapter.rang=2"], "adapter.rang: "),
        (["acceleration.compile=3"], "acceleration.compile=3: should be a valid bool"),
    ],
)
def test_bad_settings_are_one_line(overrides, line, tmp_path):
    with pytest.raises(ConfigurationError) as refused:
        validate(small(tmp_path, *LORA, *overrides))
    (told,) = refused.value.faults
    assert told.startswith(line)


def test_without_peft_the_configuration_is_refused(tmp_path, monkeypatch):
    cfg: DictConfig = small(tmp_path, *LORA)
    validate(cfg)
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError) as refused:
        validate(cfg)
    (line,) = refused.value.faults
    assert line == "adapter: adapter=lora needs peft; pip install 'stabledrl[lora]'"


def test_targets_are_looked_for_in_the_model(tmp_path):
    with pytest.raises(UserError, match=r"^adapter\.targets: 'q_porj' is no linear layer of Llama"):
        build_policy(lora(tmp_path, "adapter.targets=[q_porj]"))


def command(folder: Path, *arguments: str) -> None:
    """python run.py, as a user types it."""
    subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=240,
    )


@pytest.mark.slow
def test_the_command_line_from_the_base_to_an_evaluation(tmp_path):
    items = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(40)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    sizes = [word for word in OVERRIDES if word.startswith(("rollout.", "sampler.", "trainer."))]
    common = ["model=llada_8b", "model.dtype=float32", "task=jsonl", "task.path=sums.jsonl", *sizes]
    common += ["rollout.validation_prompts=2", "logger=csv", "extras.print_config=false"]
    settings = [f"model.path={LLADA}", *LORA, "optimizer.lr=0.01", "scheduler=constant"]
    command(tmp_path, *common, *settings)
    [run] = tmp_path.glob("outputs/train/*/*")
    one = load_file(run / "adapter/adapter_model.safetensors")
    command(tmp_path, *common, *settings, "trainer.max_epochs=2", "ckpt_path=last")
    assert [run] == list(tmp_path.glob("outputs/train/*/*"))
    two = load_file(run / "adapter/adapter_model.safetensors")
    assert one.keys() == two.keys()
    with (run / "metrics.csv").open(newline="") as file:
        steps = [row["step"] for row in csv.DictReader(file) if row["train/loss"]]
    assert steps == ["0", "1", "2", "3"]
    evaluation = ["job=evaluate", f"model.path={run}/model", "job.prompts=2", "job.samples=0"]
    command(tmp_path, *common, *evaluation)
    [result] = tmp_path.glob("outputs/evaluate/*/*/summary.json")
    assert json.loads(result.read_text())["status"] == "finished"
