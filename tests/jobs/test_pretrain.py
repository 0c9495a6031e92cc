"""job=pretrain: a warm start from a random policy, resumable like everything else."""

import json

import torch

from stabledrl.jobs.pretrain import pretrain
from stabledrl.models.tiny import load
from tests.training.small_runs import rows, small

JOB = ("job=pretrain", "estimator.draws=1", "scheduler=constant")


def test_two_epochs_and_a_resume(tmp_path):
    whole = small(tmp_path / "whole", *JOB, "trainer.max_epochs=2")
    assert pretrain(whole, batch_size=4, steps_per_epoch=3) is not None
    pretrain(small(tmp_path / "parts", *JOB), batch_size=4, steps_per_epoch=3)
    parts = small(tmp_path / "parts", *JOB, "trainer.max_epochs=2", "ckpt_path=last")
    pretrain(parts, batch_size=4, steps_per_epoch=3)
    found = rows(tmp_path / "whole")
    updates = [row for row in found if "train/loss" in row]
    assert [row["step"] for row in updates] == list("012345")
    assert float(updates[-1]["train/loss"]) < float(updates[0]["train/loss"])
    assert [row for row in rows(tmp_path / "parts") if "train/loss" in row] == updates
    one, two = (load(str(tmp_path / name / "model")).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    summary = json.loads((tmp_path / "whole/summary.json").read_text())
    assert summary["status"] == "finished"
    # what `optimized_metric` may name is what every validation measures
    for validation in summary["metrics"]["validations"]:
        assert validation.keys() == {"step", *pretrain.metrics}
    assert not (tmp_path / "whole/completions").exists()
