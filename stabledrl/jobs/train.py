"""job=train: reinforcement learning on rollouts."""

from __future__ import annotations

from omegaconf import DictConfig

from stabledrl.algorithm import Algorithm
from stabledrl.config import build
from stabledrl.declarations import declares
from stabledrl.jobs.fitting import METRICS, build_validation, fit, starting_point
from stabledrl.jobs.policies import build_policy
from stabledrl.jobs.record import Record
from stabledrl.training.module import ReinforcementModule
from stabledrl.training.phases import PhaseCollector, PhaseSettings


@declares(metrics=METRICS)
def train(cfg: DictConfig) -> float | None:
    """Train a policy, from `ckpt_path` if set; returns the optimised metric."""
    checkpoint = starting_point(cfg)
    record = Record(cfg)
    task, sampler = record.using(build(cfg.task)), build(cfg.sampler)
    collector = PhaseCollector(
        task=task,
        sampler=sampler,
        algorithm=build_algorithm(cfg),
        settings=phase_settings(cfg),
        seed=cfg.seed,
    )
    module = ReinforcementModule(
        build_policy(cfg),
        build(cfg.optimizer),
        build(cfg.scheduler),
        build_validation(cfg, task, sampler),
        collector,
    )
    return fit(cfg, record, module, checkpoint)


def phase_settings(cfg: DictConfig) -> PhaseSettings:
    """The sizes of a phase that the group rollout chooses."""
    sizes = cfg.rollout
    return PhaseSettings(
        prompts_per_phase=sizes.prompts_per_phase,
        group_size=sizes.group_size,
        inner_updates=sizes.inner_updates,
        prompts_per_batch=sizes.prompts_per_batch,
        sampling_rows=sizes.sampling_rows,
        training_rows=sizes.get("training_rows"),
        drift_every=sizes.get("drift_every", 0),
    )


def build_algorithm(cfg: DictConfig) -> Algorithm:
    """The objective that the groups estimator … kl choose."""
    return Algorithm(
        estimator=build(cfg.estimator),
        pairing=build(cfg.masking.pairs),
        ratio=build(cfg.ratio),
        clipping=build(cfg.clipping),
        normalization=build(cfg.normalization),
        advantage=build(cfg.advantage),
        penalty=build(cfg.kl),
        completion_length=cfg.sampler.length,
        group_filter=build(cfg.group_filter),
    )
