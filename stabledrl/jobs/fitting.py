"""From a configuration to a fitted module: shared by the jobs that train."""

from __future__ import annotations

import os
import time
from pathlib import Path

import lightning.pytorch as pl
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from omegaconf import DictConfig

from stabledrl.config import build
from stabledrl.diagnostics.collapse import Verdict, phrase, plain
from stabledrl.errors import ConfigurationError, UserError
from stabledrl.jobs.loggers import build_loggers, close_loggers
from stabledrl.jobs.policies import prompt_limit
from stabledrl.jobs.record import Record
from stabledrl.launch import STARTED
from stabledrl.policy import Policy
from stabledrl.prompts import fitting
from stabledrl.samplers.sampler import Sampler
from stabledrl.training import processes
from stabledrl.training.callbacks.stability import Stability
from stabledrl.training.checkpoints import Checkpoint, clear, find
from stabledrl.training.metrics_file import MetricsFile
from stabledrl.training.module import PolicyModule, ReinforcementModule, Validation
from stabledrl.training.sharding import gather_weights
from stabledrl.types import Task

# What every validation measures, hence what `optimized_metric` may name.
METRICS = ("val/solved", "val/reward")


def build_validation(cfg: DictConfig, policy: Policy, task: Task, sampler: Sampler) -> Validation:
    """Greedy decoding of the first `rollout.validation_prompts` prompts of the validation split.

    Their seed is fixed: runs with different seeds are judged on the same puzzles. Those that are
    too long are left out.
    """
    prompts = task.prompts("validation", 0, 0, cfg.rollout.validation_prompts)
    kept = fitting(policy, prompts, prompt_limit(cfg), "validation").prompts
    return Validation(task, sampler, kept, cfg.rollout.sampling_rows)


def starting_point(cfg: DictConfig) -> Checkpoint | None:
    """What `ckpt_path` means; ConfigurationError if it does not do, before a record is touched.

    A checkpoint of a longer run than asked for does not; one of the end of this run does.
    """
    try:
        checkpoint = find(cfg.ckpt_path, Path(cfg.paths.run_dir))
    except UserError as error:
        raise ConfigurationError([str(error)]) from error
    if checkpoint is not None:
        path, content = checkpoint
        epochs, done = cfg.trainer.get("max_epochs"), content["epoch"] + 1  # of Lightning, from 0
        if epochs is not None and done > epochs:
            raise ConfigurationError(
                [f"trainer.max_epochs={epochs}: {path} is after epoch {done}; set at least that"]
            )
    return checkpoint


def fit(
    cfg: DictConfig, record: Record, module: PolicyModule, checkpoint: Checkpoint | None
) -> float | None:
    """Validate, train (from the checkpoint if any), validate, save; the optimised metric."""
    loggers = build_loggers(cfg, record.directory)
    module.train()  # from_pretrained hands models over in evaluation mode
    try:
        callbacks = [build(node) for node in (cfg.callbacks or {}).values() if node is not None]
        trainer: pl.Trainer = build(
            cfg.trainer,
            logger=loggers,
            callbacks=callbacks,
            default_root_dir=str(record.directory),
            enable_checkpointing=any(isinstance(item, ModelCheckpoint) for item in callbacks),
            enable_progress_bar=any(isinstance(item, ProgressBar) for item in callbacks),
            use_distributed_sampler=False,  # the module shares the prompts out
            # ours, whatever else the environment looks like
            plugins=[LightningEnvironment()] if STARTED in os.environ else None,
        )
        start = time.perf_counter()
        if checkpoint is None:
            if processes.is_first():
                clear(record.directory)
            trainer.validate(module, verbose=False)
            trainer.fit(module)
        else:
            path, content = checkpoint
            for logger in loggers:
                if isinstance(logger, MetricsFile):
                    logger.resume(content["global_step"])
            trainer.fit(module, ckpt_path=str(path), weights_only=True)
        final = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if not module.history or module.history[-1]["step"] != module.global_step:
            trainer.validate(module, verbose=False)
        module.seconds["fit"] = time.perf_counter() - start
    finally:
        close_loggers()
    gather_weights(module.policy, processes.is_first())
    if processes.is_first():
        module.policy.save_pretrained(record.directory / "model")
        module.policy.save_adapter(record.directory / "adapter")
    watching = [item.verdict for item in callbacks if isinstance(item, Stability)]
    return _summarize(cfg, record, module, final, watching[0] if watching else None)


def _summarize(
    cfg: DictConfig,
    record: Record,
    module: PolicyModule,
    final: dict[str, float],
    verdict: Verdict | None,
) -> float | None:
    """summary.json and the panel; final holds the metrics of the last epoch.

    verdict: on the stability of rollouts; None if nobody watched, which summary.json says as null.
    """
    final = final | module.history[-1]  # all there is if the checkpoint was the end of training
    solved = [item["val/solved"] for item in module.history]
    optimized = final.get(cfg.optimized_metric)
    metrics = {
        "start": module.history[0],
        "best": max(module.history, key=lambda item: item["val/solved"]),
        "final": final,
        "validations": module.history,
    }
    rows = [
        ("held-out solve rate", f"{solved[0]:.3f} -> {solved[-1]:.3f} (best {max(solved):.3f})"),
        ("updates", f"{module.global_step}"),
        ("policy", f"{record.directory}/model"),
    ]
    findings = {}
    if isinstance(module, ReinforcementModule):
        findings["collapse"] = plain(verdict) if verdict else None
        rows[1:1] = [("collapse", phrase(verdict))] if verdict else []
    record.finish(metrics, optimized, dict(module.seconds), rows, findings)
    return optimized
