"""Presets have the numbers of the papers and recipes they are named after, and each trains."""

import pytest
import yaml
from omegaconf import OmegaConf

from stabledrl.config import validate
from stabledrl.jobs.train import train
from tests.conftest import ROOT
from tests.jobs.test_conf import composed
from tests.training.small_runs import rows, small

# estimator, ratio's score, pairing, clipping, normalization, advantage, kl, group_filter
PARTS = {
    "grpo": "Elbo per_token_score independent conditional group standardized 0 none",
    "stabledrl": "Elbo per_token_score independent unconditional self_normalized centered 0 none",
    "stabledrl_positive": "Elbo per_token_score independent unconditional self_normalized"
    " asymmetric 0 none",
    "stabledrl_released": "Sandwich per_token_score independent unconditional self_normalized"
    " centered 0 none",
    "stabledrl_block": "BlockElbo per_token_score independent unconditional self_normalized"
    " centered 0 none",
    "grpo_block": "BlockElbo per_token_score independent conditional group standardized 0 none",
    "diffu_grpo": "MeanField token_score paired conditional token centered"
    " 0.04·k3·pooled·frozen none",
    "unigrpo": "Elbo per_token_score paired conditional group standardized"
    " 0.04·k3·per_token·frozen none",
    "coupled_grpo": "CoupledToken token_score paired conditional token leave_one_out"
    " 0.01·k3·pooled·frozen none",
    "wd1": "MeanField sequence_score independent uniform unnormalized softmax 0 none",
    "spg": "Sandwich per_token_score independent uniform length_weighted centered 0 none",
    "espo": "Coupled per_token_score paired conditional group leave_one_out"
    " 0.01·k2·divided·frozen none",
    "gdpo": "Quadrature per_token_score paired conditional group centered 0 none",
    "trace_rl": "Trajectory token_score shared conditional fixed_length standardized"
    " 0.01·k3·fixed_length·rollout accuracy_range",
    "dapo": "MeanField token_score paired conditional token standardized 0 nonzero_std",
}
# ε, μ and whatever else method.md §6, the papers or their recipes name
NUMBERS = {
    "grpo": {"clipping.epsilon_low": 0.2, "clipping.epsilon_high": 0.2, "estimator.draws": 1},
    "stabledrl": {"clipping.epsilon": 5.0},
    "stabledrl_positive": {"clipping.epsilon": 5.0, "advantage.negative_weight": 0.0},
    "stabledrl_released": {
        "clipping.epsilon": 4.0,  # w = min(ρ, 5)
        "estimator.draws": 2,
        "estimator.beta": 1.5,
        "estimator.upper_bound_weight": 0.5,
        "masking.pattern.perturbation": 0.15,
        "masking.pattern.block_length": 4,  # the sampler's
        "rollout.inner_updates": 2,
    },
    "stabledrl_block": {"clipping.epsilon": 5.0, "estimator.draws": 1},
    "grpo_block": {
        "clipping.epsilon_low": 0.2,
        "clipping.epsilon_high": 0.2,
        "estimator.draws": 1,
    },
    "diffu_grpo": {
        "clipping.epsilon_low": 0.5,
        "clipping.epsilon_high": 0.5,
        "estimator.prompt_mask_probability": 0.15,
        "rollout.inner_updates": 12,
    },
    "unigrpo": {"clipping.epsilon_low": 0.2, "clipping.epsilon_high": 0.2, "estimator.draws": 1},
    "coupled_grpo": {
        "clipping.epsilon_low": 0.5,
        "clipping.epsilon_high": 0.5,
        "estimator.lowest_rate": 0.2,
        "estimator.highest_rate": 0.8,
        "rollout.inner_updates": 2,
    },
    "wd1": {
        "estimator.prompt_mask_probability": 0.15,
        "advantage.temperature": 1.0,
        "rollout.inner_updates": 8,
    },
    "spg": {
        "estimator.draws": 2,
        "estimator.beta": 1.5,
        "estimator.upper_bound_weight": 0.5,
        "masking.pattern.perturbation": 0.15,
        "masking.pattern.block_length": 4,
        "rollout.inner_updates": 4,
    },
    "espo": {
        "clipping.epsilon_low": 0.2,
        "clipping.epsilon_high": 0.2,
        "estimator.draws": 1,
        "rollout.inner_updates": 8,
    },
    "gdpo": {
        "clipping.epsilon_low": 0.2,
        "clipping.epsilon_high": 0.2,
        "estimator.nodes": 2,
        "estimator.draws": 1,
        "rollout.inner_updates": 12,
    },
    "trace_rl": {
        "clipping.epsilon_low": 0.2,
        "clipping.epsilon_high": 0.2,
        "estimator.shrink": 1,
        "estimator.draws": None,
        "advantage.sample_standard_deviation": False,
        "advantage.epsilon": 1e-8,
        "group_filter.lowest": 0.2,
        "group_filter.highest": 0.8,
        "rollout.inner_updates": 1,
    },
    "dapo": {"clipping.epsilon_low": 0.2, "clipping.epsilon_high": 0.28},
}


def last(node):
    """The name of what a node builds."""
    return node["_target_"].rpartition(".")[2]


def parts(cfg):
    """The switches of an objective in a line, as PARTS has them."""
    kl = [f"{cfg.kl.coefficient:g}"]
    if cfg.kl.coefficient:
        kl += [last(cfg.kl.divergence), last(cfg.kl.level), cfg.kl.reference]
    return " ".join(
        [
            last(cfg.estimator),
            last(cfg.ratio.score),
            cfg.masking.pairing,
            last(cfg.clipping),
            last(cfg.normalization),
            last(cfg.advantage),
            "·".join(kl),
            last(cfg.group_filter),
        ]
    )


CHOSEN = {"estimator", "ratio", "masking", "clipping", "normalization", "advantage", "kl"}


@pytest.mark.parametrize("preset", sorted(set(PARTS) - {"stabledrl_positive"}))
def test_a_preset_leaves_no_switch_of_the_objective_to_others(preset):
    written = yaml.safe_load((ROOT / f"conf/algorithm/{preset}.yaml").read_text())
    groups = {key.removeprefix("override /") for item in written["defaults"] for key in item}
    assert groups == CHOSEN | {"group_filter"}
    assert written["masking"]["pairing"]


def test_every_preset_is_looked_at():
    presets = {path.stem for path in (ROOT / "conf/algorithm").glob("*.yaml")}
    assert presets == set(PARTS) == set(NUMBERS)


@pytest.mark.parametrize("preset", PARTS)
def test_a_preset_is_what_its_paper_says(preset):
    cfg = composed("sampler.block_length=4", f"algorithm={preset}")
    assert parts(cfg) == PARTS[preset]
    found = {key: OmegaConf.select(cfg, key) for key in NUMBERS[preset]}
    assert found == NUMBERS[preset]


@pytest.mark.parametrize("preset", PARTS)
def test_every_preset_trains(preset, tmp_path):
    # nothing of this task is solved, which leaves no group to TraceRL's filter
    wider = ["group_filter.lowest=0.0"] * (preset == "trace_rl")
    cfg = small(tmp_path, f"algorithm={preset}", *wider)
    validate(cfg)
    train(cfg)
    updates = [row for row in rows(tmp_path) if "train/loss" in row]
    assert len(updates) == 2
    assert all(float(row["train/grad_norm"]) > 0 for row in updates)


def test_a_switch_on_the_command_line_wins_over_a_preset():
    cfg = composed("algorithm=diffu_grpo", "kl=none", "clipping=unconditional")
    assert (cfg.kl.coefficient, cfg.clipping.epsilon) == (0, 5.0)
    assert "epsilon_low" not in cfg.clipping
    cfg = composed("algorithm=espo", "masking.pairing=independent")
    assert cfg.masking.pairing == "independent"
