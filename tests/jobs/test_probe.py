"""job=probe: what it measures is what a run then logs, and it says what it did not measure."""

import json

import pytest
import torch

from benchmarks.gradient_spread import first_updates
from stabledrl.errors import ConfigurationError
from stabledrl.jobs.probe import enumerable, probe
from stabledrl.jobs.train import train
from tests.training.small_runs import rows, small

LIVELY = ("model.seed=3", "algorithm=grpo", "advantage=centered")


def settings(cfg, **changes):
    return {key: value for key, value in cfg.job.items() if key != "_target_"} | {
        "phases": 2,
        "repetitions": 2,
        "draws": 2,
        "gradient_draws": 3,
        "exact_repetitions": 10,
        "evaluations": 2,
        **changes,
    }


def probed(directory, *overrides, **changes):
    cfg = small(directory, "job=probe", *overrides)
    value = probe(cfg, **settings(cfg, **changes))
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["optimized_metric"] == value
    return summary["metrics"]


def test_everything_is_measured_and_told(tmp_path, capsys):
    found = probed(tmp_path, *LIVELY)
    assert set(found["noise"]) == {"independent", "paired", "shared"}
    for pairing, item in found["noise"].items():
        assert item["entries"] == 2 * 2 * 12  # repetitions, phases, completions
        assert (item["std"] == 0) == (pairing != "independent")
    assert set(found["by_draws"]) == {"1", "2"}
    assert set(found["gradient"]) == set(found["order"])
    assert len(found["order"]) == 6
    assert {len(name.split(" + ")) for name in found["order"]} == {2}
    assert found["exact"]["completions"] == 8
    assert found["exact"]["repetitions"] == 10
    assert found["exact_negative_score"] is None
    assert found["evaluations"]["completions"] == 12
    assert found["evaluations"]["forwards"] == 1
    assert found["evaluations"]["time"] > 0
    assert found["not_enumerated"] == ""
    assert found["recommendations"]
    text = (tmp_path / "probe.md").read_text()
    for heading in ("Estimator against exact", "Log-ratio noise", "Gradient norm", "Recommend"):
        assert heading in text
    shown = capsys.readouterr().out
    assert "conditional + group" in shown
    assert "predicted bypass" in shown


@pytest.mark.parametrize(
    ("estimator", "ratio"),
    [("elbo", "per_token"), ("mean_field", "per_token"), ("coupled_token", "token")],
)
def test_its_first_repetition_is_the_first_update_of_a_run_with_this_seed(
    tmp_path, estimator, ratio
):
    chosen = (*LIVELY, f"estimator={estimator}", f"ratio={ratio}")
    run = small(tmp_path / "run", *chosen)
    train(run)
    first = rows(tmp_path / "run")[1]  # after the validation
    assert "train/ratio/noise_std" in first
    once = {"phases": 1, "repetitions": 1, "draws": 0}
    found = probed(tmp_path / "probe", *chosen, **once)
    noise = found["noise"]["independent"]
    assert noise["std"] == pytest.approx(float(first["train/ratio/noise_std"]), rel=1e-5)
    assert noise["bypass_rate"] == pytest.approx(float(first["train/bypass_rate"]), abs=1e-6)


def test_norms_of_the_configured_rule_are_those_of_a_run_that_stands_still(tmp_path):
    train(small(tmp_path / "run", *LIVELY, "optimizer.lr=1e-12", "trainer.max_epochs=2"))
    norms = first_updates(
        [
            {key: float(value) for key, value in row.items() if value}
            for row in rows(tmp_path / "run")
        ],
        phases=2,
    )
    found = probed(tmp_path / "probe", *LIVELY, gradient_draws=2)
    item = found["gradient"]["conditional + group"]
    assert item["mean"] == pytest.approx(sum(norms) / 2, rel=1e-4)
    assert item["std"] == pytest.approx(abs(norms[0] - norms[1]) / 2**0.5, rel=1e-3)


def test_paired_masks_leave_every_rule_the_same_gradient(tmp_path):
    found = probed(tmp_path, *LIVELY, "masking.pairing=paired")
    assert found["noise"]["paired"]["bypass_rate"] == 0
    means = [item["mean"] for item in found["gradient"].values()]
    assert means == pytest.approx([means[0]] * 6, rel=1e-5)
    assert means[0] > 0


def test_an_estimator_without_draws_and_numbers_that_ask_for_nothing(tmp_path):
    found = probed(tmp_path, "estimator=mean_field", exact_completions=0)
    assert found["by_draws"] == {}
    assert found["exact"] is None
    assert found["not_enumerated"] == "job.exact_completions=0"


def test_ratios_of_tokens_are_as_many_as_the_tokens_of_a_run(tmp_path):
    chosen = (*LIVELY, "estimator=trajectory", "ratio=token", "normalization=token")
    train(small(tmp_path / "run", *chosen))
    first = rows(tmp_path / "run")[1]
    once = {"phases": 1, "repetitions": 1, "exact_completions": 0}
    found = probed(tmp_path / "probe", *chosen, **once)
    assert found["noise"]["independent"]["std"] == float(first["train/ratio/noise_std"]) == 0
    tokens = 12 * float(first["train/completions/mean_length"])
    assert found["noise"]["independent"]["entries"] == pytest.approx(tokens)
    assert found["by_draws"] == {}  # with draws there are no values of all tokens


def test_the_same_again(tmp_path):
    first, second = (probed(tmp_path / name, *LIVELY) for name in "ab")
    for found in (first, second):
        found["evaluations"].pop("time")  # the clock's
    assert first == second


def test_exact_is_exact(tmp_path):
    found = probed(tmp_path, *LIVELY, "estimator=exact", evaluations=2)
    assert found["exact"]["bias"] == 0
    assert found["exact"]["std"] == 0
    assert found["evaluations"]["std"] == found["evaluations"]["group_std"] == 0


def test_sandwich_has_an_accuracy_for_either_sign(tmp_path):
    found = probed(tmp_path, *LIVELY, "estimator=sandwich", "estimator.upper_bound_weight=0")
    assert found["exact_negative_score"] == found["exact"]  # without the upper bound it is elbo


def test_which_completions_are_enumerated():
    lengths = torch.tensor([0, 13, 5, 16, 12, 20])
    assert enumerable(lengths, None)[0].tolist() == [2, 4]
    assert enumerable(lengths, 3)[0].tolist() == [1, 2, 3]
    assert enumerable(lengths, 0)[1] == "job.exact_completions=0"
    chosen, reason = enumerable(torch.tensor([16, 16]), None)
    assert len(chosen) == 0
    assert "2^16 = 65536 forward passes" in reason
    assert "job.exact_completions=1" in reason
    assert "job.exact_completions" not in enumerable(torch.tensor([17]), None)[1]
    assert "1 to 16" in enumerable(torch.tensor([17]), 2)[1]


def test_completions_that_cannot_be_enumerated_are_refused_at_once(tmp_path):
    cfg = small(tmp_path / "run", "job=probe")
    cfg.task = {**cfg.task, "fixed_length": 17}
    with pytest.raises(ConfigurationError, match=r"job\.exact_completions=2: .*at most 16"):
        probe(cfg, **settings(cfg, exact_completions=2))
    assert not (tmp_path / "run").exists()
