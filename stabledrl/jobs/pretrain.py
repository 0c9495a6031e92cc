"""job=pretrain: masked-diffusion supervised fine-tuning on the task's solutions."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt
from omegaconf import DictConfig

from stabledrl.config import build
from stabledrl.declarations import declares
from stabledrl.jobs.fitting import METRICS, build_validation, fit, starting_point
from stabledrl.jobs.policies import build_policy
from stabledrl.jobs.record import Record
from stabledrl.training.supervision import Curriculum, SupervisedModule


@declares(metrics=METRICS, trains_on="solutions")
def pretrain(
    cfg: DictConfig,
    batch_size: Annotated[int, Gt(0)],
    steps_per_epoch: Annotated[int, Gt(0)],
    block_lengths: list[Annotated[int, Gt(0)]] | None = None,
) -> float | None:
    """Fit a policy to solutions; `trainer.max_epochs · steps_per_epoch` updates.

    block_lengths: those of the batches in turn, None for the model's own.
    """
    checkpoint = starting_point(cfg)
    record = Record(cfg)
    task, sampler = record.using(build(cfg.task)), build(cfg.sampler)
    curriculum = Curriculum(
        task=task,
        estimator=build(cfg.estimator),
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        length=cfg.sampler.length,
        seed=cfg.seed,
        max_prompt_length=cfg.rollout.get("max_prompt_length"),
        block_lengths=tuple(block_lengths or ()),
    )
    policy = build_policy(cfg)
    module = SupervisedModule(
        policy,
        build(cfg.optimizer),
        build(cfg.scheduler),
        build_validation(cfg, policy, task, sampler),
        curriculum,
    )
    return fit(cfg, record, module, checkpoint)
