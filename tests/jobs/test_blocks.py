"""Models that write block by block, from the command's configuration to what a run leaves."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

from stabledrl.config import validate
from stabledrl.errors import ConfigurationError
from stabledrl.jobs.evaluate import evaluate
from stabledrl.jobs.pretrain import pretrain
from stabledrl.jobs.score import score
from stabledrl.jobs.train import train
from stabledrl.models import tiny_block
from tests.training.small_runs import rows, small

BLOCKS = ("model=tiny_block", "sampler.block_length=3", "sampler.steps=4")


@pytest.mark.parametrize(
    "chosen",
    [
        ("algorithm=stabledrl_block",),
        ("algorithm=grpo_block", "estimator.draws=2"),
        ("algorithm=stabledrl_positive",),
        ("algorithm=trace_rl", "group_filter.lowest=0.0"),
        ("algorithm=stabledrl", "estimator=exact", "masking.pairing=shared"),
        ("algorithm=stabledrl_block", "attention=block_separate", "attention.origin=response"),
    ],
    ids=lambda chosen: chosen[0].partition("=")[2] + chosen[-1].partition("=")[2],
)
def test_objectives_train_them(tmp_path, chosen):
    cfg = small(tmp_path, *BLOCKS, *chosen)
    validate(cfg)
    train(cfg)
    updates = [row for row in rows(tmp_path) if "train/loss" in row]
    assert len(updates) == 2
    assert all(float(row["train/grad_norm"]) > 0 for row in updates)
    assert tiny_block.load(str(tmp_path / "model"), 3).facts.block_length == 3


def test_both_attentions_train_alike(tmp_path):
    for attention in ("staircase", "block_separate"):
        cfg = small(
            tmp_path / attention, *BLOCKS, "algorithm=stabledrl_block", f"attention={attention}"
        )
        train(cfg)
    one, other = (rows(tmp_path / name) for name in ("staircase", "block_separate"))
    assert len(one) == len(other)
    for row, second in zip(one, other, strict=True):
        assert row.keys() == second.keys()
        for key, value in row.items():
            assert float(value) == pytest.approx(float(second[key]), rel=1e-4, abs=1e-5), key


def test_scoring_few_rows_at_a_time_changes_nothing(tmp_path):
    kept = ("algorithm=stabledrl_block", "estimator.draws=2", "kl=k2", "kl.coefficient=0.1")
    for name, limit in (("whole", "null"), ("chunks", "2")):
        train(small(tmp_path / name, *BLOCKS, *kept, f"rollout.training_rows={limit}"))
    one, other = (load_file(tmp_path / n / "model/model.safetensors") for n in ("whole", "chunks"))
    for name, weights in one.items():
        assert other[name].allclose(weights, rtol=1e-4, atol=1e-6), name


def test_a_run_that_is_taken_up_again_is_the_same(tmp_path):
    two = ("trainer.max_epochs=2", "scheduler=constant", "algorithm=stabledrl_block")
    train(small(tmp_path / "whole", *BLOCKS, *two))
    train(small(tmp_path / "half", *BLOCKS, *two, "trainer.max_epochs=1"))
    train(small(tmp_path / "half", *BLOCKS, *two, "ckpt_path=last"))
    one, other = (load_file(tmp_path / n / "model/model.safetensors") for n in ("whole", "half"))
    assert all(one[name].equal(other[name]) for name in one)


def test_a_warm_start_on_several_lengths_is_evaluated_on_each(tmp_path):
    cfg = small(tmp_path / "warm", *BLOCKS, "job=pretrain", "estimator=block_elbo")
    pretrain(cfg, batch_size=4, steps_per_epoch=3, block_lengths=[1, 2, 6])
    for length, steps in ((1, 6), (6, 6)):
        where = tmp_path / f"{length}"
        chosen = (f"sampler.block_length={length}", f"sampler.steps={steps}")
        cfg = small(where, *BLOCKS, *chosen, "job=evaluate")
        cfg.model = {
            "_target_": "stabledrl.models.tiny_block.load",
            "path": str(tmp_path / "warm/model"),
            "block_length": length,
        }
        evaluate(cfg, "validation", 4, samples=0, k=None, lengths=None, steps=None)
        summary = json.loads((where / "summary.json").read_text())
        assert summary["status"] == "finished"


def test_texts_are_scored_in_blocks(tmp_path):
    source = tmp_path / "texts.jsonl"
    source.write_text('{"prompt": "1+2=", "completion": "123"}\n')
    cfg = small(tmp_path, *BLOCKS, "job=score", "estimator=block_elbo")
    settings = {k: v for k, v in cfg.job.items() if k != "_target_"} | {"input": str(source)}
    score(cfg, **settings)
    assert list(tmp_path.rglob("*.jsonl"))


def test_what_does_not_go_together_is_told_at_once(tmp_path):
    for chosen, line in (
        ((*BLOCKS, "estimator=coupled"), "take estimator=block_elbo, elbo, mean_field, traj"),
        ((*BLOCKS, "attention=bidirectional"), "take attention=staircase"),
        (("attention=staircase",), "take attention=bidirectional"),
        (("sampler=block",), "take sampler=semi_autoregressive"),
    ):
        with pytest.raises(ConfigurationError, match=line):
            validate(small(tmp_path, *chosen))
