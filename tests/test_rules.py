"""Rules across groups: what each refuses, in which words, and what it lets pass."""

from typing import Any

import pytest
import torch

from stabledrl.jobs.pretrain import pretrain
from stabledrl.jobs.train import train
from stabledrl.rules import RULES

FAKE = "tests.fake_components"
FUNCTIONS = "stabledrl.functional"
SAMPLER = {"sampler.length": 16, "sampler.block_length": 4, "sampler.steps": 8}
PHASE = {
    "rollout.prompts_per_phase": 8,
    "rollout.prompts_per_batch": 2,
    "trainer.accumulate_grad_batches": 1,
}
STEP = {"normalization._target_": f"{FAKE}.normalize_step", "trainer.accumulate_grad_batches": 1}
POOLED = {
    "kl.level._target_": "stabledrl.penalty.pooled",
    "kl.coefficient": 0.0,
    "trainer.accumulate_grad_batches": 2,
}
BLOCKS = {
    "masking.pattern._target_": f"{FAKE}.BlockRandom",
    "estimator._target_": f"{FAKE}.Elbo",
}


def told(settings: dict[str, Any]) -> list[str]:
    """Lines of all rules about a configuration given by dotted keys."""
    cfg: dict[str, Any] = {}
    for path, value in settings.items():
        node = cfg
        *parents, leaf = path.split(".")
        for key in parents:
            node = node.setdefault(key, {})
        node[leaf] = value
    return [line for rule in RULES for line in rule(cfg)]


@pytest.mark.parametrize("settings", [SAMPLER, PHASE, STEP, POOLED, BLOCKS, {}], ids=str)
def test_what_the_cases_below_change_is_accepted(settings):
    assert told(settings) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rollout.group_size": 1}, ["rollout.group_size=1: G=1 gives no advantage"]),
        (SAMPLER | {"sampler.block_length": 3}, ["sampler.length=16", "sampler.block_length=3"]),
        (SAMPLER | {"sampler.steps": 6}, ["sampler.steps=6", "block_length=4", "4 blocks"]),
        (SAMPLER | {"sampler.steps": 32}, ["sampler.steps=32 is more than sampler.length=16"]),
        (SAMPLER | {"task.fixed_length": 17}, ["sampler.length=16 is too short", "=17 tokens"]),
        (PHASE | {"rollout.prompts_per_batch": 3}, ["prompts_per_phase=8", "per_batch=3"]),
        (PHASE | {"trainer.accumulate_grad_batches": 3}, ["prompts_per_phase=8", "batches=3"]),
        (
            STEP | {"trainer.accumulate_grad_batches": 2},
            ["normalization=normalize_step", "trainer.accumulate_grad_batches=2 must be 1"],
        ),
        (
            POOLED | {"kl.coefficient": 0.04},
            ["kl.level=pooled", "trainer.accumulate_grad_batches=2 must be 1"],
        ),
        (
            {"group_filter.lowest": 0.8, "group_filter.highest": 0.2},
            ["group_filter.lowest=0.8 is above group_filter.highest=0.2"],
        ),
        (BLOCKS | {"estimator._target_": f"{FAKE}.Coupled"}, ["BlockRandom", "Coupled"]),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused(settings, words):
    (line,) = told(settings)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("path", "value", "minimum"),
    [
        ("trainer.max_epochs", 0, 1),
        ("trainer.max_epochs", -1, 1),
        ("trainer.check_val_every_n_epoch", 0, 1),
        ("trainer.accumulate_grad_batches", 0, 1),
        ("trainer.gradient_clip_val", -0.5, 0),
        ("optimizer.lr", -1e-3, 0),
        ("optimizer.lr", float("nan"), 0),
        ("optimizer.weight_decay", -0.01, 0),
    ],
)
def test_numbers_out_of_range_are_refused(path, value, minimum):
    assert told({path: value}) == [f"{path}={value}: should be at least {minimum}"]
    assert told({path: minimum}) == told({path: None}) == []
    assert told({path: float("inf")}) == [f"{path}=inf: should be finite"]


@pytest.mark.parametrize("job", ["train", "pretrain"])
def test_precisions_that_hold_are_accepted_and_others_refused(job):
    job = {"job._target_": f"stabledrl.jobs.{job}.{job}"}
    for precision in (None, 32, "32", "32-true", "bf16-mixed"):
        assert told(job | {"trainer.precision": precision}) == []
    for precision in ("bf16-true", "16-mixed", "16-true", "64-true", 64, 16, "bf16"):
        (line,) = told(job | {"trainer.precision": precision})
        assert line.startswith(f"trainer.precision={precision}: should be 32-true or bf16-mixed")
    evaluate = {"job._target_": "stabledrl.jobs.evaluate.evaluate"}
    assert told(evaluate | {"trainer.precision": "16-true"}) == []


def test_an_adapter_that_nobody_trains_is_refused():
    lora = {"adapter._target_": "stabledrl.models.adapter.Lora"}
    for job in ("train", "pretrain", "probe"):
        assert told(lora | {"job._target_": f"stabledrl.jobs.{job}.{job}"}) == []
    for job in ("evaluate", "generate", "score"):
        settings = lora | {"job._target_": f"stabledrl.jobs.{job}.{job}"}
        (line,) = told(settings)
        assert line.startswith(f"adapter: job={job} trains none")
        none = {"adapter._target_": "stabledrl.models.adapter.none"}
        assert told(settings | none) == []


def test_training_without_an_end_is_refused():
    trainer = {"trainer._target_": "lightning.pytorch.Trainer"}
    line = "trainer.max_epochs=null: should be a whole number, at least 1"
    assert told(trainer | {"trainer.max_epochs": None}) == [line]
    assert told(trainer) == [line]
    assert told(trainer | {"trainer.max_epochs": None, "trainer.max_steps": 5}) == []
    evaluate = {"job._target_": "stabledrl.jobs.evaluate.evaluate"}
    assert told(trainer | evaluate) == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("betas", [0.9, 1.5], "Invalid beta"),
        ("eps", -1.0, "Invalid epsilon"),
        ("betas", [0.9], "index"),
        ("betas", [0.9, "x"], "not supported"),
    ],
)
def test_numbers_that_the_optimizer_refuses_are_refused_before_it_is_built(key, value, words):
    adamw = {"optimizer._target_": "torch.optim.AdamW", "optimizer._partial_": True}
    (line,) = told(adamw | {f"optimizer.{key}": value})
    assert line.startswith("optimizer: ")
    assert words in line
    assert told(adamw | {"optimizer.betas": [0.9, 0.99], "optimizer.eps": 1e-8}) == []
    assert len(told(adamw | {"optimizer.lr": -1.0})) == 1


@pytest.mark.parametrize(
    "settings",
    [
        PHASE | {"trainer.accumulate_grad_batches": 3},
        STEP | {"trainer.accumulate_grad_batches": 2},
        {"rollout.group_size": 1},
    ],
    ids=str,
)
def test_rules_of_a_phase_bind_only_jobs_that_have_phases(settings):
    for job in ("pretrain", "evaluate"):
        assert told(settings | {"job._target_": f"stabledrl.jobs.{job}.{job}"}) == []
    for job in ("train", "probe"):
        assert len(told(settings | {"job._target_": f"stabledrl.jobs.{job}.{job}"})) == 1


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"trainer.devices": 3}, 3),
        ({"trainer.devices": "3"}, 3),
        ({"trainer.devices": "0,3,5"}, 3),
        ({"trainer.devices": [0, 1, 2]}, 3),
        ({"trainer.devices": "auto", "trainer.accelerator": "gpu"}, 3),
        ({"trainer.devices": -1}, 3),
        ({"trainer.devices": 1, "trainer.num_nodes": 3}, 3),
        ({"trainer.devices": 2, "trainer.num_nodes": 3}, 6),
    ],
    ids=str,
)
def test_a_phase_is_whole_steps_of_all_processes(monkeypatch, settings, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert told(PHASE | settings) == [
        "rollout.prompts_per_phase=8 is not a multiple of rollout.prompts_per_batch=2 x "
        f"trainer.accumulate_grad_batches=1 x {count} processes"
    ]
    assert told(PHASE | settings | {"rollout.prompts_per_phase": 12}) == []
    evaluate = {"job._target_": "stabledrl.jobs.evaluate.evaluate"}
    assert told(PHASE | settings | evaluate) == []


@pytest.mark.parametrize("devices", [1, "1", [3], "3,", "auto"])
def test_one_process_is_accepted(devices):
    assert told(PHASE | {"trainer.devices": devices, "trainer.accelerator": "cpu"}) == []


def test_means_over_the_step_are_those_of_all_processes():
    assert told(PHASE | STEP | {"trainer.devices": 2}) == []


def test_processes_that_share_the_weights_need_the_same_forward_passes():
    sharded = {"trainer.strategy._target_": "stabledrl.training.sharding.Sharded"}
    exact = {"estimator._target_": "stabledrl.estimators.exact.Exact"}
    (line,) = told(sharded | exact)
    assert line.startswith("estimator=Exact makes as many forward passes")
    assert told(exact) == []
    assert told(sharded | {"estimator._target_": "stabledrl.estimators.elbo.Elbo"}) == []


def test_an_adapter_is_not_divided():
    sharded = {"trainer.strategy._target_": "stabledrl.training.sharding.Sharded"}
    lora = {"adapter._target_": "stabledrl.models.adapter.Lora"}
    (line,) = told(sharded | lora)
    assert line.startswith("adapter=Lora leaves weights frozen")
    assert told(lora | {"trainer.devices": 2}) == []
    assert told(sharded | {"adapter._target_": "stabledrl.models.adapter.none"}) == []


@pytest.mark.parametrize(
    ("confidence", "accepted"),
    [
        # p in [0, 1]; p(best) − p(second) in [0, 1] too, and above t only where p is
        ("token_probability", True),
        ("top_margin", True),
        # a uniform number; −entropy, never above a threshold, which is positive
        ("random_order", False),
        ("negative_entropy", False),
    ],
)
def test_a_threshold_needs_a_confidence_it_can_be_compared_with(confidence, accepted):
    target = {"sampler.confidence._target_": f"{FUNCTIONS}.decoding.{confidence}"}
    line = (
        f"sampler.threshold=0.9 means nothing to sampler.confidence={confidence}, which is no "
        "probability: set sampler.threshold=null"
    )
    assert told(target | {"sampler.threshold": 0.9}) == ([] if accepted else [line])
    assert told(target | {"sampler.threshold": None}) == []
    assert told({"sampler.threshold": 0.9}) == []  # a sampler with a confidence of its own


@pytest.mark.parametrize("job", [train, pretrain])
def test_a_metric_the_job_does_not_measure_is_refused(job):
    target = {"job._target_": f"{job.__module__}.{job.__name__}"}
    assert told(target | {"optimized_metric": "val/solvd"}) == [
        "optimized_metric=val/solvd: no validation measures it; did you mean 'val/solved'?"
    ]
    assert told(target | {"optimized_metric": "zzz"}) == [
        "optimized_metric=zzz: no validation measures it; take one of val/reward, val/solved"
    ]
    for name in ("val/solved", "val/reward", None):
        assert told(target | {"optimized_metric": name}) == []
    # a job that states nothing: not checked
    assert told({"job._target_": f"{FAKE}.job", "optimized_metric": "mine"}) == []


def test_a_checkpoint_is_refused_where_nothing_goes_on_from_it(tmp_path):
    path = tmp_path / "a.ckpt"
    path.touch()
    evaluate = {"job._target_": "stabledrl.jobs.evaluate.evaluate", "ckpt_path": str(path)}
    assert told(evaluate) == [
        f"ckpt_path={path}: job=evaluate takes no checkpoint; name the model that a run left: "
        "model.path=<run>/model"
    ]
    assert told(evaluate | {"ckpt_path": None}) == []
    assert told(evaluate | {"job._target_": "stabledrl.jobs.train.train"}) == []


def of_blocks(**chosen: str) -> dict[str, str]:
    """Model, attention, sampler, estimator and job by their last names."""
    where = {
        "model": "stabledrl.models.{}",
        "attention": "stabledrl.attention.{}",
        "sampler": "stabledrl.samplers.{}",
        "estimator": "stabledrl.estimators.{}",
        "job": "stabledrl.jobs.{}",
    }
    return {f"{group}._target_": where[group].format(name) for group, name in chosen.items()}


def test_a_model_that_nobody_decodes_is_refused_where_it_would_be():
    for job in ("train", "pretrain", "evaluate", "probe", "generate", "score"):
        (line,) = told(of_blocks(model="fast_dllm_v2.load", job=f"{job}.{job}"))
        loader = "stabledrl.models.fast_dllm_v2.load"
        assert line.startswith(f"model._target_={loader}: sampling from it or scoring with it is")
        assert told(of_blocks(model="dream.load", job=f"{job}.{job}")) == []
    for job in ("grade", "report", "dashboard"):
        assert told(of_blocks(model="fast_dllm_v2.load", job=f"{job}.{job}")) == []


BIDIRECTIONAL = of_blocks(
    model="tiny.load",
    attention="bidirectional.Bidirectional",
    sampler="semi_autoregressive.SemiAutoregressive",
    estimator="coupled.Coupled",
)
BLOCKS = of_blocks(
    model="sdar.load",
    attention="staircase.Staircase",
    sampler="block.BlockDiffusion",
    estimator="block_elbo.BlockElbo",
)


@pytest.mark.parametrize("group", ["attention", "sampler", "estimator"])
@pytest.mark.parametrize("job", ["train", "pretrain"])
def test_blocks_fit_together(group, job):
    chosen = of_blocks(job=f"{job}.{job}")
    key = f"{group}._target_"
    for right, wrong in ((BIDIRECTIONAL, BLOCKS), (BLOCKS, BIDIRECTIONAL)):
        assert told(right | chosen) == []
        lines = told(right | chosen | {key: wrong[key]})
        if group == "estimator" and right is BIDIRECTIONAL:
            assert lines == []  # a completion is one block
            continue
        (line,) = lines
        assert line.startswith(f"{group}={wrong[key].rpartition('.')[2]}")
        assert right["model._target_"] in line
        assert "does not" in line or right is BLOCKS
    graded = of_blocks(job="grade.grade")
    assert told(BLOCKS | graded | {key: BIDIRECTIONAL[key]}) == []


def test_evaluation_asks_no_estimator():
    chosen = BLOCKS | of_blocks(job="evaluate.evaluate", estimator="coupled.Coupled")
    assert told(chosen) == []


@pytest.mark.parametrize("name", ["elbo.Elbo", "mean_field.MeanField", "exact.Exact"])
def test_estimators_that_hide_within_blocks(name):
    train = of_blocks(job="train.train", estimator=name)
    assert told(BLOCKS | train) == []
    masked = {"masking.pattern._target_": "stabledrl.functional.masking.block_random"}
    line = told(BLOCKS | train | masked)[-1]
    assert line.startswith("masking.pattern=block_random hides tokens of the whole completion")
    (line,) = told(BLOCKS | train | {"estimator.prompt_mask_probability": 0.15})
    assert line.startswith("estimator.prompt_mask_probability=0.15: model=stabledrl.models.sdar")


def test_flex_attention_trains_on_gpus():
    chosen = {"attention.flex": True, "trainer.accelerator": "cpu"}
    train = of_blocks(job="train.train")
    assert told(BLOCKS | chosen | train) == [
        "attention.flex=true: flex_attention has no gradient on a CPU: take attention.flex=false "
        "or trainer=gpu"
    ]
    assert told(BLOCKS | chosen | of_blocks(job="score.score")) == []
    assert told(BLOCKS | chosen | train | {"trainer.accelerator": "gpu"}) == []


def test_lengths_of_blocks_are_for_models_with_blocks():
    lengths = {"job.block_lengths": [1, 2], **of_blocks(job="pretrain.pretrain")}
    assert told(BLOCKS | lengths) == []
    assert told(BIDIRECTIONAL | lengths) == [
        "job.block_lengths=[1, 2]: model=stabledrl.models.tiny.load does not write block by "
        "block: take model=tiny_block or job.block_lengths=null"
    ]
