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


BRING_THEIR_OWN_MASKS = [
    "coupled.Coupled",
    "coupled_token.CoupledToken",
    "exact.Exact",
    "mean_field.MeanField",
    "quadrature.Quadrature",
    "stratified.Stratified",
    "trajectory.Trajectory",
]


@pytest.mark.parametrize("name", [*BRING_THEIR_OWN_MASKS, "elbo.Elbo", "sandwich.Sandwich"])
def test_block_random_is_for_elbo_and_sandwich(name):
    lines = told(
        {
            "masking.pattern._target_": f"{FUNCTIONS}.masking.block_random",
            "estimator._target_": f"stabledrl.estimators.{name}",
        }
    )
    assert len(lines) == (name in BRING_THEIR_OWN_MASKS)
    assert all("block_random" in line and name in line for line in lines)


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
    ("settings", "devices", "count"),
    [
        ({"trainer.devices": 8}, "8", 8),
        ({"trainer.devices": "2"}, "2", 2),
        ({"trainer.devices": "0,3"}, "0,3", 2),
        ({"trainer.devices": [0, 1, 2]}, "[0, 1, 2]", 3),
        ({"trainer.devices": "auto", "trainer.accelerator": "gpu"}, "auto", 4),
        ({"trainer.devices": -1}, "-1", 4),
    ],
    ids=str,
)
def test_several_processes_are_refused(monkeypatch, settings, devices, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert told(settings) == [
        f"trainer.devices={devices}: {count} processes would all train on the same data, "
        "several are not supported yet: set trainer.devices=1"
    ]


def test_several_nodes_are_refused():
    (line,) = told({"trainer.devices": 2, "trainer.num_nodes": 3})
    assert "6 processes" in line
    assert line.endswith("set trainer.devices=1 and trainer.num_nodes=1")


@pytest.mark.parametrize("devices", [1, "1", [3], "3,", "auto"])
def test_one_process_is_accepted(devices):
    assert told({"trainer.devices": devices, "trainer.accelerator": "cpu"}) == []


# By hand, for a completion of n tokens: ℓ is Σ log p at ratio=sequence and Σ log p / n at
# per_token. The published losses are means over tokens, c·ℓ ∝ (Σ log p)/n, or sums over them:
# sequence_token_mean  Z = G·n            c·ℓ ∝ ℓ/n    needs Σ log p      (GRPO)
# fixed_length         Z = G·R            c·ℓ ∝ ℓ/R    needs Σ log p      (Dr.GRPO)
# token                Z = Σ_j n_j        c·ℓ ∝ ℓ/Σn   needs Σ log p      (DAPO, d1)
# length_weighted      Z = Σ_j n_j / n    c·ℓ ∝ ℓ·n/Σn needs Σ log p / n  (SPG)
SUMMED = ("sequence_token_mean", "fixed_length", "token")
ANY = ("group", "self_normalized", "batch_self", "unnormalized")


@pytest.mark.parametrize("level", ["sequence", "per_token", "token"])
@pytest.mark.parametrize("name", [*SUMMED, *ANY, "length_weighted"])
def test_a_normalization_goes_with_the_score_of_its_formula(name, level):
    lines = told(
        {
            "normalization._target_": f"{FUNCTIONS}.normalization.{name}",
            "ratio.score._target_": f"{FUNCTIONS}.ratio.{level}_score",
        }
    )
    if name in SUMMED and level == "per_token":
        assert lines == [
            f"normalization={name} is for scores summed over tokens, ratio.score=per_token_score "
            "gives scores per token: take ratio=sequence or normalization=group"
        ]
    elif name == "length_weighted" and level != "per_token":
        assert lines == [
            f"normalization=length_weighted is for scores per token, ratio.score={level}_score "
            "gives scores summed over tokens: take ratio=per_token or normalization=group"
        ]
    else:
        assert lines == []


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


def test_enumeration_refuses_long_completions():
    exact = {"estimator._target_": "stabledrl.estimators.exact.Exact"}
    assert told(exact | {"sampler.length": 16}) == []
    assert told(exact | {"sampler.length": 17}) == [
        "sampler.length=17 is too long for estimator=Exact, which takes at most 16 tokens: "
        "shorten it or take another estimator"
    ]


def test_solutions_have_no_decoding_to_replay():
    trajectory = {"estimator._target_": "stabledrl.estimators.trajectory.Trajectory"}
    assert told(trajectory | {"job._target_": "stabledrl.jobs.train.train"}) == []
    assert told(trajectory | {"job._target_": "stabledrl.jobs.pretrain.pretrain"}) == [
        "estimator=Trajectory replays a decoding, and job=pretrain trains on solutions: take "
        "another estimator"
    ]
    assert told(trajectory | {"job._target_": "stabledrl.jobs.score.score"}) == [
        "estimator=Trajectory replays a decoding, and job=score scores texts: take another "
        "estimator"
    ]
    assert told(trajectory | {"job._target_": "stabledrl.jobs.generate.generate"}) == []


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


def test_a_divergence_per_token_needs_token_values():
    level = {"kl.level._target_": "stabledrl.penalty.token", "kl.coefficient": 0.1}
    estimator = "stabledrl.estimators."
    elbo = {"estimator._target_": f"{estimator}elbo.Elbo"}
    trajectory = {"estimator._target_": f"{estimator}trajectory.Trajectory"}
    for settings, name in ((elbo, "Elbo"), (trajectory | {"estimator.draws": 2}, "Trajectory")):
        assert told(level | settings) == [
            f"kl.level=token needs an estimator with token values, estimator={name} as configured "
            "has none: take kl.level=divided"
        ]
    assert told(level | trajectory) == []
    assert told(level | {"estimator._target_": f"{estimator}mean_field.MeanField"}) == []
    assert told(level | elbo | {"kl.coefficient": 0.0}) == []


def test_a_ratio_of_tokens_needs_token_values():
    units = {"ratio.units._target_": "stabledrl.levels.tokens"}
    estimator = "stabledrl.estimators."
    elbo = {"estimator._target_": f"{estimator}elbo.Elbo"}
    trajectory = {"estimator._target_": f"{estimator}trajectory.Trajectory"}
    for settings, name in ((elbo, "Elbo"), (trajectory | {"estimator.draws": 2}, "Trajectory")):
        for job in ("train", "probe"):
            target = {"job._target_": f"stabledrl.jobs.{job}.{job}"}
            assert told(units | settings | target) == [
                "ratio.units=tokens needs an estimator with token values, "
                f"estimator={name} as configured has none: take ratio=per_token"
            ]
    assert told(units | trajectory) == []
    for path in ("mean_field.MeanField", "coupled_token.CoupledToken"):
        assert told(units | {"estimator._target_": estimator + path}) == []
    assert told(elbo | {"ratio.units._target_": "stabledrl.levels.completions"}) == []
    assert told(units | elbo | {"job._target_": "stabledrl.jobs.evaluate.evaluate"}) == []


@pytest.mark.parametrize("name", ["coupled.Coupled", "quadrature.Quadrature"])
def test_estimators_with_masks_of_their_own_take_uniform_masking_only(name):
    estimator = {"estimator._target_": f"stabledrl.estimators.{name}"}
    assert told(estimator | {"masking.pattern._target_": f"{FUNCTIONS}.masking.uniform"}) == []
    (line,) = told(estimator | {"masking.pattern._target_": f"{FAKE}.BlockRandom"})
    assert "which brings its own masks" in line
