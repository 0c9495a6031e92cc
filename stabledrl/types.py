"""The nouns of the house: what passes between rooms, frozen, with shapes in the annotations.

Axis names used throughout: `prompt` (N), `sample` (S = N·G, grouped: samples of one prompt are
neighbours), `group` (N) and `member` (G) when the two are apart, `unit` (1 for sequence-level
values, R for token-level ones), `prompt_position` (P), `completion_position` (R), `draw` (K),
`update` (μ).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """One question of a task.

    text: what the tokenizer sees (templates already applied).
    task: name of the task it belongs to.
    key: identity of the item, the same wherever and whenever it is drawn.
    data: what the verifier and the warm start need (puzzle, solution, numbers, target, …).
    messages: the same as (role, content) of a conversation; where there are any, the policy puts
    them into its chat template, and that becomes the text.
    """

    text: str
    task: str
    key: str
    data: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class RewardOutput:
    """Verdict on one completion.

    total: the reward; None means "no verdict" and leaves the sample out of mean, std and loss.
    solved: whether the task is solved outright.
    parts: unweighted reward per named part.
    reason: one short phrase when the reward is 0 or missing.
    """

    total: float | None
    solved: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@runtime_checkable
class Task(Protocol):
    """Prompts, splits and verifier of one task (structural: any class with these will do).

    It may have `verify_all(prompts, completions)` as well, which then grades completions together,
    with the verdicts of `verify`; and `data_shape`, a pydantic model of what the verifier needs.
    """

    @property
    def name(self) -> str:
        """Name in keys and metrics."""
        ...

    @property
    def fixed_length(self) -> int | None:
        """Exact number of completion tokens, or None if an end token ends a completion."""
        ...

    def prompts(self, split: str, seed: int, start: int, count: int) -> list[Prompt]:
        """Items start..start+count of the endless (or cycled) seeded stream of a split."""
        ...

    def solution(self, prompt: Prompt) -> str:
        """One right completion, for the warm start."""
        ...

    def verify(self, prompt: Prompt, completion: str) -> RewardOutput:
        """Grade a completion; pure, bounded in time, never executes the text."""
        ...


@dataclass(frozen=True)
class Completions:
    """What a sampler returns, before grading.

    ids: completion tokens, no mask token left.
    step: forward pass (0-based, over the whole completion) that committed each token; the number
    of passes where none did, in blocks after the one with the end token.
    log_probability: log p of each token when it was committed, at the sampling temperature (at 1
    where that is 0).
    forwards: forward passes spent per completion, in the mean.
    """

    ids: Int[Tensor, "sample completion_position"]
    step: Int[Tensor, "sample completion_position"]
    log_probability: Float[Tensor, "sample completion_position"]
    forwards: float


@dataclass(frozen=True)
class Sequences:
    """Prompts (left-padded) and completions as token ids: what an estimator scores.

    prompt_mask: True at real prompt tokens. completion_mask: True at tokens that count (up to and
    including the first end token). step: forward pass that committed each completion token
    (0-based), None where nothing was decoded (SFT on solutions). block: number of the block of each
    prompt and completion token along the text, None where a model has none (`Policy.blocks`).
    """

    prompt_ids: Int[Tensor, "sample prompt_position"]
    prompt_mask: Bool[Tensor, "sample prompt_position"]
    completion_ids: Int[Tensor, "sample completion_position"]
    completion_mask: Bool[Tensor, "sample completion_position"]
    step: Int[Tensor, "sample completion_position"] | None = None
    block: Int[Tensor, "sample position"] | None = None

    def __getitem__(self, index: slice | Tensor) -> Sequences:
        """The chosen samples."""
        return Sequences(
            self.prompt_ids[index],
            self.prompt_mask[index],
            self.completion_ids[index],
            self.completion_mask[index],
            None if self.step is None else self.step[index],
            None if self.block is None else self.block[index],
        )

    def __len__(self) -> int:
        return self.completion_ids.shape[0]

    @property
    def completion_block(self) -> Int[Tensor, "sample completion_position"]:
        """Blocks of the completion alone, the first one 0; a model without has one."""
        if self.block is None:
            return torch.zeros_like(self.completion_ids)
        own = self.block[:, self.prompt_ids.shape[1] :]
        return own - own[:, :1]

    @property
    def length(self) -> Int[Tensor, " sample"]:
        """Number of counted completion tokens per sample."""
        return self.completion_mask.sum(-1)


@dataclass(frozen=True)
class Corruption:
    """What an estimator hides, and how much each hidden token's log-probability counts.

    mask: completion tokens replaced by the mask token, those after the end token among them
    (unless a decoding is replayed that saw them).
    weight: factor of log p(token) in the proxy; 0 where nothing is scored.
    prompt_mask: prompt tokens hidden as well, or None.
    An estimator without randomness (`exact`) has no draws: K = 0.
    """

    mask: Bool[Tensor, "draw sample completion_position"]
    weight: Float[Tensor, "draw sample completion_position"]
    prompt_mask: Bool[Tensor, "draw sample prompt_position"] | None = None

    def __getitem__(self, index: slice | Tensor) -> Corruption:
        """The chosen samples of every draw."""
        prompt = None if self.prompt_mask is None else self.prompt_mask[:, index]
        return Corruption(self.mask[:, index], self.weight[:, index], prompt)


@dataclass(frozen=True)
class Likelihood:
    """A likelihood proxy in nats.

    value: enters the log-ratio. score: carries the gradient (the value unless the estimator says
    otherwise). token_value: the value per token where the estimator has one, else None.
    negative_score: carries the gradient in the score's place where the advantage is not positive,
    for estimators that bound the likelihood from above there; None where the score serves both.
    """

    value: Float[Tensor, " sample"]
    score: Float[Tensor, " sample"]
    token_value: Float[Tensor, "sample completion_position"] | None = None
    negative_score: Float[Tensor, " sample"] | None = None

    def __getitem__(self, index: slice | Tensor) -> Likelihood:
        """The chosen samples."""
        return Likelihood(
            self.value[index],
            self.score[index],
            None if self.token_value is None else self.token_value[index],
            None if self.negative_score is None else self.negative_score[index],
        )

    @staticmethod
    def join(parts: Sequence[Likelihood]) -> Likelihood:
        """Several batches of samples as one."""
        token_values = [part.token_value for part in parts if part.token_value is not None]
        negatives = [part.negative_score for part in parts if part.negative_score is not None]
        return Likelihood(
            torch.cat([part.value for part in parts]),
            torch.cat([part.score for part in parts]),
            torch.cat(token_values) if token_values else None,
            torch.cat(negatives) if negatives else None,
        )


@runtime_checkable
class Estimator(Protocol):
    """Draws what to hide and scores it (structural: any class with these will do)."""

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        """Everything random about one evaluation of all samples, in sample order."""
        ...

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        """The proxy of every sample under this corruption."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """The one thing an estimator asks of a policy."""

    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Float[Tensor, "*draw sample completion_position"]:
        """log p(true token | corrupted sequence) at counted masked positions, 0 elsewhere.

        mask: one of the completion for each sample, or for each draw of each sample.
        """
        ...


@dataclass(frozen=True)
class Batch:
    """Whole groups of one inner update: what the loss needs, nothing it could compute itself.

    group_size: G; the S samples are N groups of G neighbours.
    advantage, verdict: [group, member]; verdict is False where there was none.
    old: the rollout policy's likelihood under its own corruption (which pairing decides).
    reference: the reference policy's likelihood under this corruption, or None.
    log_ratio_noise: added to the log-ratios of a stress test (nats), or None.
    counted_share: groups with any verdict among all groups of the phase (1 where none has one). The
    loss is a mean over those: a group then weighs the same in whatever batch of the phase it is,
    and however many batches an optimiser step has.
    """

    sequences: Sequences
    corruption: Corruption
    group_size: int
    advantage: Float[Tensor, "group member"]
    verdict: Bool[Tensor, "group member"]
    old: Likelihood
    reference: Likelihood | None = None
    log_ratio_noise: Float[Tensor, "group member unit"] | None = None
    counted_share: float = 1.0

    def groups(self, first: int, last: int) -> Batch:
        """Groups first..last (exclusive), with all their samples."""
        samples = slice(first * self.group_size, last * self.group_size)
        return replace(
            self,
            sequences=self.sequences[samples],
            corruption=self.corruption[samples],
            advantage=self.advantage[first:last],
            verdict=self.verdict[first:last],
            old=self.old[samples],
            reference=None if self.reference is None else self.reference[samples],
            log_ratio_noise=None
            if self.log_ratio_noise is None
            else self.log_ratio_noise[first:last],
        )


@dataclass(frozen=True)
class LossOutput:
    """Loss with the detached tensors that explain it, keyed by metric name (docs/metrics.md)."""

    loss: Float[Tensor, ""]
    metrics: Mapping[str, Tensor]


def to_device(value: Any, device: torch.device) -> Any:
    """A copy of a (nested) frozen dataclass with every tensor on the device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if is_dataclass(value) and not isinstance(value, type):
        moved = {item.name: to_device(getattr(value, item.name), device) for item in fields(value)}
        return replace(value, **moved)
    return value
