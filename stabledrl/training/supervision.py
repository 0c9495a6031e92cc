"""Masked-diffusion supervised fine-tuning: the warm start of a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from stabledrl.policy import Policy
from stabledrl.prompts import PromptLimit, PromptStream
from stabledrl.randomness import keyed_generator
from stabledrl.rollout import rendered
from stabledrl.share import WHOLE, Share
from stabledrl.training import processes
from stabledrl.training.module import OptimizerFactory, PolicyModule, Schedule, Validation
from stabledrl.types import Corruption, Estimator, Prompt, Sequences, Task

Example = tuple[Sequences, Corruption]


@dataclass(frozen=True)
class Curriculum:
    """Endless training examples: the task's solutions, masked by the estimator.

    batch_size: examples in one pass of each process. steps_per_epoch: optimiser steps between
    checkpoints. length: completion tokens; shorter solutions are filled with end tokens, which
    count (LLaDA).
    max_prompt_length: tokens of the longest prompt, None for any that the model's context takes.
    block_lengths: those of batches in turn, for a model that writes block by block; none for its
    own.
    """

    task: Task
    estimator: Estimator
    batch_size: int
    steps_per_epoch: int
    length: int
    seed: int
    max_prompt_length: int | None = None
    block_lengths: tuple[int, ...] = ()

    @cached_property
    def stream(self) -> PromptStream:
        """The prompts of the examples: those that fit."""
        limit = PromptLimit(self.max_prompt_length, self.length)
        return PromptStream(self.task, self.seed, self.batch_size, limit)

    def example(self, policy: Policy, number: int, share: Share = WHOLE) -> Example:
        """This process's part of the batch with this number, the same whenever it is asked for."""
        portions = range(number * share.processes, (number + 1) * share.processes)
        prompts = [prompt for part in portions for prompt in self.stream(policy, part).prompts]
        lengths = self.block_lengths or (None,)
        block_length = lengths[number % len(lengths)]
        sequences = solved_sequences(policy, self.task, prompts, self.length, block_length)
        generator = keyed_generator("pretrain", self.seed, number)
        corruption = self.estimator.draw(sequences, 1, generator)
        own = replace(share, batch=self.batch_size).samples(len(prompts), 1)
        return sequences[own], corruption[own]


def solved_sequences(
    policy: Policy,
    task: Task,
    prompts: list[Prompt],
    length: int,
    block_length: int | None = None,
) -> Sequences:
    """Prompts with their solutions, filled with end tokens; ValueError for one that is too long."""
    prompts = rendered(policy, prompts)
    prompt_ids, prompt_mask = policy.encode([prompt.text for prompt in prompts])
    end = policy.facts.end_token_ids[0]
    rows = []
    for prompt in prompts:
        ids = policy.tokenizer.encode(task.solution(prompt), add_special_tokens=False)
        if len(ids) > length:
            raise ValueError(
                f"sampler.length={length} is too short for the solution {task.solution(prompt)!r} "
                f"of {prompt.text!r}: it has {len(ids)} tokens"
            )
        rows.append(ids + [end] * (length - len(ids)))
    completion = torch.tensor(rows, device=prompt_ids.device)
    counted = torch.ones_like(completion, dtype=torch.bool)
    block = policy.blocks(prompt_mask, length, block_length)
    return Sequences(prompt_ids, prompt_mask, completion, counted, block=block)


class SupervisedModule(PolicyModule):
    """Maximises the likelihood proxy of the solutions, per token: loss = −mean L̂/L in nats."""

    def __init__(
        self,
        policy: Policy,
        optimizer: OptimizerFactory,
        schedule: Schedule,
        validation: Validation,
        curriculum: Curriculum,
    ) -> None:
        super().__init__(policy, optimizer, schedule, validation)
        self.curriculum = curriculum
        self._losses: list[Tensor] = []

    def train_dataloader(self) -> DataLoader[Example]:
        """The examples of the next epoch."""
        return DataLoader(_Examples(self), batch_size=None)

    def training_step(self, batch: Example, batch_index: int) -> Tensor:
        """Negative likelihood proxy per token."""
        sequences, corruption = batch
        likelihood = self.curriculum.estimator(self.policy, sequences, corruption)
        loss = -(likelihood.score / sequences.length).mean()
        self._losses.append(loss.detach())
        self.computed += [("likelihood", likelihood.value.detach()), ("loss", loss.detach())]
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log the step."""
        phase = self.global_step // self.curriculum.steps_per_epoch
        loss = torch.cat(processes.gather(torch.stack(self._losses))).mean()
        self._losses = []
        self.log_step({"train/loss": loss, "phase": torch.tensor(float(phase))}, optimizer)


class _Examples(IterableDataset[Example]):
    """One epoch of a curriculum, beginning at the module's optimiser step."""

    def __init__(self, module: SupervisedModule) -> None:
        self._module = module

    def __len__(self) -> int:
        module = self._module
        return module.curriculum.steps_per_epoch * module.trainer.accumulate_grad_batches

    def __iter__(self) -> Iterator[Example]:
        module = self._module
        first = module.global_step * module.trainer.accumulate_grad_batches
        for number in range(first, first + len(self)):
            yield module.curriculum.example(module.policy, number, module.share)
