"""Published formats through whole jobs: train, resume, save in the original format, evaluate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from stabledrl.config import build
from stabledrl.jobs.evaluate import evaluate
from stabledrl.jobs.pretrain import pretrain
from stabledrl.jobs.train import train
from stabledrl.models.tiny import character_tokenizer
from tests.conftest import ROOT
from tests.training.small_runs import rows, small

GOLDEN = ROOT / "tests/golden"
GREEDY = {"samples": 0, "k": None, "lengths": None, "steps": None}


def bert(folder: Path) -> Path:
    """A BERT of one layer with the tiny model's characters."""
    tokenizer = character_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# what model=sdar_8b chooses, and sizes that its blocks of four divide
BLOCKS = (
    "attention=staircase",
    "sampler=block",
    "sampler.length=8",
    "sampler.block_length=4",
    "sampler.steps=4",
    "estimator=block_elbo",
)


def configured(directory: Path, option: str, path: Path, *overrides: str) -> DictConfig:
    """A small run of the real model=option on a checkpoint."""
    cfg = small(directory, *(BLOCKS if option == "sdar_8b" else ()), *overrides)
    chosen = OmegaConf.load(ROOT / f"conf/model/{option}.yaml")
    cfg.model = chosen.get("model", chosen)
    cfg.model.path, cfg.model.dtype = str(path), "float32"
    return cfg


def published(option: str, directory: Path) -> Path:
    """A tiny checkpoint for model=option: a golden one, or a BERT made in the directory."""
    golden = {
        "llada_8b": GOLDEN / "llada",
        "dream_7b": GOLDEN / "dream",
        "sdar_8b": GOLDEN / "sdar",
    }
    return golden.get(option) or bert(directory / "bert")


@pytest.fixture(params=["llada_8b", "dream_7b", "sdar_8b", "masked_lm"])
def checkpoint(request, tmp_path) -> tuple[str, Path]:
    return request.param, published(request.param, tmp_path)


def test_a_checkpoint_trains_is_saved_in_its_format_and_evaluates(checkpoint, tmp_path):
    option, path = checkpoint
    train(configured(tmp_path / "run", option, path))
    numbers = [
        float(row["train/grad_norm"]) for row in rows(tmp_path / "run") if "train/grad_norm" in row
    ]
    assert numbers
    assert all(number > 0 for number in numbers)
    before, after = (load_file(p / "model.safetensors") for p in (path, tmp_path / "run/model"))
    assert before.keys() == after.keys()
    assert all(before[name].shape == after[name].shape for name in before)
    moved = [name for name in before if not before[name].equal(after[name])]
    assert len(moved) > len(before) / 2
    if option != "masked_lm":
        files = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
        for name in files:
            assert (tmp_path / "run/model" / name).read_bytes() == (path / name).read_bytes()
    again = configured(tmp_path / "eval", option, tmp_path / "run/model", "job=evaluate")
    assert evaluate(again, split="test", prompts=2, **GREEDY) is not None


@pytest.mark.parametrize("option", ["llada_8b", "sdar_8b"])
def test_a_resumed_run_equals_one_without_interruption(tmp_path, option):
    whole, half = tmp_path / "whole", tmp_path / "half"
    path = published(option, tmp_path)
    two = ("trainer.max_epochs=2", "scheduler=constant")
    train(configured(whole, option, path, *two))
    train(configured(half, option, path, "trainer.max_epochs=1", "scheduler=constant"))
    train(configured(half, option, path, *two, "ckpt_path=last"))
    one, other = (load_file(place / "model/model.safetensors") for place in (whole, half))
    assert all(one[name].equal(other[name]) for name in one)


def test_half_precision_trains(tmp_path):
    cfg = configured(tmp_path, "llada_8b", GOLDEN / "llada")
    cfg.model.dtype = "bfloat16"
    train(cfg)
    saved = load_file(tmp_path / "model/model.safetensors")
    assert {value.dtype for value in saved.values()} == {torch.bfloat16}
    assert all(value.isfinite().all() for value in saved.values())


def test_a_checkpoint_is_warm_started_on_solutions(tmp_path):
    cfg = configured(tmp_path, "dream_7b", GOLDEN / "dream", "job=pretrain", "job.batch_size=4")
    cfg.job.steps_per_epoch = 2
    pretrain(cfg, **{k: v for k, v in cfg.job.items() if not k.startswith("_")})
    assert json.loads((tmp_path / "summary.json").read_text())["metrics"]


def test_what_is_saved_loads_where_it_came_from(tmp_path):
    cfg = configured(tmp_path, "masked_lm", bert(tmp_path / "bert"))
    policy = build(cfg.model)
    policy.save_pretrained(tmp_path / "saved")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved")
    for name, value in policy.backbone.state_dict().items():
        assert again.state_dict()[name].equal(value)
