"""One rollout phase: sample, grade, score under the old policy, hand out whole groups μ times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import IterableDataset

from stabledrl.algorithm import Algorithm
from stabledrl.policy import Policy
from stabledrl.prompts import PromptLimit, PromptStream
from stabledrl.randomness import keyed_generator
from stabledrl.rollout import Rollout, collect, rollout_metrics
from stabledrl.samplers.sampler import Sampler
from stabledrl.share import WHOLE, Share
from stabledrl.types import Batch, Scorer, Task


@dataclass(frozen=True)
class PhaseSettings:
    """Sizes of a phase (conf/rollout).

    prompts_per_phase: N. group_size: G completions per prompt. inner_updates: μ passes over a
    phase. prompts_per_batch: groups per loss. sampling_rows: completions decoded together, and
    training_rows: scored together, None for those of a batch (memory only). drift_every: phases
    between two measurements of the drift from the frozen policy, 0 for none. max_prompt_length:
    tokens of the longest prompt, None for any that the model's context takes.
    """

    prompts_per_phase: int
    group_size: int
    inner_updates: int
    prompts_per_batch: int
    sampling_rows: int
    training_rows: int | None = None
    drift_every: int = 0
    max_prompt_length: int | None = None

    @property
    def rows(self) -> int:
        """Completions scored together, before an update and in it alike.

        So equal weights give equal likelihoods to the last bit.
        """
        return self.training_rows or self.prompts_per_batch * self.group_size


@dataclass(frozen=True)
class Phase:
    """A collected phase: graded completions and one batch per inner update.

    reward: the rollout's, with NaN for whole groups that the group filter dropped.
    Rollout, reward and metrics are those of all processes, batches are this one's.
    """

    rollout: Rollout
    reward: Float[Tensor, "group member"]
    batches: list[Batch]
    metrics: dict[str, float]


@dataclass(frozen=True)
class PhaseCollector:
    """Collects phase number `phase` with a policy; everything random is keyed by (seed, phase).

    So a phase depends on nothing but its number and the weights: a run resumed at a phase boundary
    replays it bit for bit, and no rollout is ever stored.
    """

    task: Task
    sampler: Sampler
    algorithm: Algorithm
    settings: PhaseSettings
    seed: int

    @cached_property
    def stream(self) -> PromptStream:
        """The prompts of the phases: those that fit."""
        settings = self.settings
        limit = PromptLimit(settings.max_prompt_length, self.sampler.length)
        return PromptStream(self.task, self.seed, settings.prompts_per_phase, limit)

    def __call__(
        self, policy: Policy, reference: Scorer | None, phase: int, share: Share = WHOLE
    ) -> Phase:
        """Sample and grade N·G completions, evaluate the old policy, prepare μ batches.

        share: of the work, that of this process; the numbers do not depend on it.
        """
        settings = self.settings
        portion = self.stream(policy, phase)
        share = replace(share, batch=settings.prompts_per_batch)
        rollout = collect(
            policy,
            self.sampler,
            self.task,
            portion.prompts,
            settings.group_size,
            keyed_generator("completions", self.seed, phase),
            settings.sampling_rows,
            share,
        )
        kept = self.algorithm.group_filter(rollout.reward, rollout.solved)
        reward = rollout.reward.masked_fill(~kept[:, None], torch.nan).to(policy.device)
        batches = self.algorithm.prepare(
            policy,
            reference,
            rollout.sequences,
            reward,
            settings.inner_updates,
            settings.rows,
            lambda label: keyed_generator("masks", self.seed, phase, label),
            share,
        )
        metrics = rollout_metrics(rollout, policy.facts.end_token_ids, self.task.fixed_length)
        metrics["train/dropped_prompts"] = float(portion.dropped)
        metrics["train/frac_filtered"] = float((~kept).float().mean())
        if reference is not None and settings.drift_every and phase % settings.drift_every == 0:
            metrics["train/drift/reference"] = self._drift(policy, reference, rollout, phase, share)
        return Phase(rollout, reward, batches, metrics)

    def _drift(
        self, policy: Policy, reference: Scorer, rollout: Rollout, phase: int, share: Share
    ) -> float:
        size, rows = self.settings.group_size, self.settings.rows
        generator = keyed_generator("drift", self.seed, phase)
        return float(
            self.algorithm.drift(policy, reference, rollout.sequences, size, rows, generator, share)
        )


class PhaseDataset(IterableDataset[Batch]):
    """One pass over it is one phase: N/n batches of n groups, μ times; of P processes N/(n·P) each.

    `begin` collects the phase. It runs when iteration begins and only there: the length is known,
    so Lightning does not fetch ahead, and later batches see no newer weights.
    """

    def __init__(
        self, begin: Callable[[], Phase], settings: PhaseSettings, processes: int = 1
    ) -> None:
        self._begin = begin
        self._settings = settings
        self._own = settings.prompts_per_phase // processes  # groups of this process

    def __len__(self) -> int:
        """Batches of a phase."""
        return self._settings.inner_updates * self._own // self._settings.prompts_per_batch

    def __iter__(self) -> Iterator[Batch]:
        size = self._settings.prompts_per_batch
        for batch in self._begin().batches:
            for first in range(0, self._own, size):
                yield batch.groups(first, first + size)
