"""Whole runs, small enough for a test: the real conf/, a tiny policy and a task that always pays.

A random policy never solves a Sudoku, so its gradients would be zero; `Digits` pays for small
digits, of which every completion has its own number.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from stabledrl.config import register_resolvers
from stabledrl.models.adapter import none
from stabledrl.policy import Policy
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from stabledrl.training.module import ReinforcementModule, Validation
from stabledrl.training.phases import PhaseCollector, PhaseSettings
from stabledrl.training.schedule import constant
from stabledrl.types import Prompt, RewardOutput
from tests.conftest import ROOT
from tests.phases import algorithm
from tests.policies import tiny_policy

LENGTH = 6
CLOCK = ("time/", "perf/")  # metrics that depend on it
OVERRIDES = (
    "model=tiny",
    "model.hidden_size=16",
    "model.layers=1",
    "model.heads=2",
    "model.feedforward_size=32",
    "rollout.prompts_per_phase=4",
    "rollout.prompts_per_batch=4",
    "rollout.group_size=3",
    "rollout.inner_updates=2",
    "rollout.validation_prompts=4",
    f"sampler.length={LENGTH}",
    f"sampler.block_length={LENGTH}",
    "sampler.steps=3",
    "optimizer.lr=0.01",
    "scheduler.warmup_steps=3",
    "trainer.max_epochs=1",
    "trainer.check_val_every_n_epoch=2",
    "logger=csv",
    "callbacks.completions.every=1",
    "callbacks.completions.shown=0",
    "~callbacks.progress",
    "extras.print_config=false",
)


class Digits:
    """Prompts of several lengths; the reward is the share of digits below 5 in the completion."""

    name = "digits"
    fixed_length = None

    def prompts(self, split: str, seed: int, start: int, count: int) -> list[Prompt]:
        """Sums of one to three numbers."""
        numbers = [
            zlib.crc32(f"{split} {seed} {item}".encode()) for item in range(start, start + count)
        ]
        texts = ["+".join(str(number)[: 1 + number % 3]) + "=" for number in numbers]
        return [Prompt(text, self.name, text) for text in texts]

    def solution(self, prompt: Prompt) -> str:
        """Digits."""
        return "123"

    def verify(self, prompt: Prompt, completion: str) -> RewardOutput:
        """Count the digits."""
        digits = sum(letter in "01234" for letter in completion)
        share = digits / max(1, len(completion))
        return RewardOutput(share, share == 1, {"digits": share})


def small(directory: Path, *overrides: str, conf: Path = ROOT / "conf") -> DictConfig:
    """The configuration of a small run that leaves its files in a directory."""
    register_resolvers()
    with initialize_config_dir(str(conf), version_base="1.3"):
        cfg = compose("config", [*OVERRIDES, f"paths.run_dir={directory}", *overrides])
    cfg.task = {"_target_": f"{__name__}.Digits"}
    return cfg


def rows(directory: Path) -> list[dict[str, str]]:
    """metrics.csv of a run without empty cells and without what depends on the clock."""
    with (directory / "metrics.csv").open(newline="") as file:
        return [
            {key: value for key, value in row.items() if value and not key.startswith(CLOCK)}
            for row in csv.DictReader(file)
        ]


def lively_policy() -> Policy:
    """The tiny policy with weights of its own: lively, but far from certain of anything."""
    made = tiny_policy()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3, generator=generator)
    return made


def module(
    settings: PhaseSettings | None = None,
    schedule: Callable[[int, int], float] = constant,
    policy: Callable[[Policy], Policy] = none,
    **changes: object,
) -> ReinforcementModule:
    """A module on the tiny policy, with what `policy` does to it; changes: of the algorithm."""
    sampler = SemiAutoregressive(length=LENGTH, block_length=LENGTH, steps=3)
    task = Digits()
    return ReinforcementModule(
        policy(lively_policy()),
        partial(torch.optim.AdamW, lr=0.003),
        schedule,
        Validation(task, sampler, task.prompts("validation", 0, 0, 3), 2),
        PhaseCollector(task, sampler, algorithm(**changes), settings or SETTINGS, seed=0),
    )


SETTINGS = PhaseSettings(
    prompts_per_phase=4, group_size=3, inner_updates=2, prompts_per_batch=4, sampling_rows=64
)


def batches_of(prompts: int) -> PhaseSettings:
    """The same phase in smaller batches."""
    return replace(SETTINGS, prompts_per_batch=prompts)


def trainer(*callbacks: pl.Callback, **settings: object) -> pl.Trainer:
    """A quiet trainer of one phase that leaves no file."""
    quiet: dict[str, object] = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "limit_val_batches": 0,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(callbacks=list(callbacks), **quiet | settings)  # type: ignore[arg-type]


class Gradients(pl.Callback):
    """Remembers the gradient of every optimiser step, and the masks of every batch."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []
        self.masks: list[torch.Tensor] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """The masks."""
        self.masks.append(batch.corruption.mask)  # type: ignore[attr-defined]

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """The gradient as one vector."""
        parts = [p.grad.flatten() for p in pl_module.parameters() if p.grad is not None]
        self.seen.append(torch.cat(parts).clone())


class Killed(BaseException):
    """What the bomb throws: nothing in the house catches it, as nothing catches a signal."""


class Bomb(pl.Callback):
    """Ends the run without warning once a number of optimiser steps have been made."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """In the middle of a phase, if the step is."""
        if trainer.global_step == self.step:
            raise Killed


class SavedGradients(pl.Callback):
    """Leaves `gradients.pt` in the run directory: the whole gradient of every optimiser step."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory, "gradients.pt")
        self._seen: list[torch.Tensor] = []

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Gather what is divided."""
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        whole = [getattr(grad, "full_tensor", lambda grad=grad: grad)() for grad in gradients]
        self._seen.append(torch.cat([torch.zeros(0), *(grad.flatten() for grad in whole)]))

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write them."""
        if trainer.is_global_zero:
            torch.save(self._seen, self._path)


class Broken(pl.Callback):
    """Makes the old likelihood of one batch NaN, on the last process only."""

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """At the second update; the batch comes again, at the fourth of four."""
        if trainer.global_step == 1 and trainer.global_rank == trainer.world_size - 1:
            batch.old.value.fill_(float("nan"))  # type: ignore[attr-defined]
