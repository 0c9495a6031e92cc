"""Prompts in, graded completions out: one piece of code for training, validation and evaluation."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stabledrl.functional.advantage import centered
from stabledrl.functional.masking import counted_tokens
from stabledrl.functional.reduce import masked_mean
from stabledrl.policy import Policy
from stabledrl.samplers.sampler import Sampler
from stabledrl.share import WHOLE, Share
from stabledrl.types import Completions, Prompt, RewardOutput, Sequences, Task


@dataclass(frozen=True)
class Rollout:
    """Graded completions, G per prompt; sample i·G + j is the j-th completion of prompt i.

    texts: what was graded, decoded up to the first end token. rewards: the verdicts.
    sampling_s, grading_s: wall time in seconds.
    """

    prompts: Sequence[Prompt]
    group_size: int
    sequences: Sequences
    completions: Completions
    texts: Sequence[str]
    rewards: Sequence[RewardOutput]
    sampling_s: float
    grading_s: float

    @property
    def reward(self) -> Float[Tensor, "group member"]:
        """Rewards, NaN where there was no verdict."""
        totals = [float("nan") if item.total is None else item.total for item in self.rewards]
        return torch.tensor(totals).view(-1, self.group_size)

    @property
    def solved(self) -> Float[Tensor, "group member"]:
        """1 where the task is solved outright."""
        return torch.tensor([float(item.solved) for item in self.rewards]).view(-1, self.group_size)


@dataclass(frozen=True)
class Sampled:
    """Completions before grading, G per prompt, in the order of `Rollout`; texts as there."""

    sequences: Sequences
    completions: Completions
    texts: Sequence[str]


def sample(
    policy: Policy,
    sampler: Sampler,
    prompts: Sequence[str],
    group_size: int,
    generator: torch.Generator,
    rows: int,
    share: Share = WHOLE,
) -> Sampled:
    """Sample `group_size` completions of every prompt that is the share's.

    generator: everything random, drawn at once in sample order, so neither `rows` (completions
    decoded together; memory only) nor the share changes a completion. Raises RuntimeError for a
    mask token left over.
    """
    prompt_ids, prompt_mask = policy.encode(prompts)
    own = share.samples(len(prompts), group_size)
    prompt_ids = prompt_ids.repeat_interleave(group_size, 0)[own]
    prompt_mask = prompt_mask.repeat_interleave(group_size, 0)[own]
    uniform = sampler.draw(len(prompts) * group_size, generator)[own]
    parts = [
        sampler(policy, prompt_ids[at], prompt_mask[at], uniform[at])
        for at in (slice(first, first + rows) for first in range(0, len(prompt_ids), rows))
    ]
    completions = join(parts) if parts else no_completions(sampler.length, policy.device)
    if (completions.ids == policy.facts.mask_token_id).any():
        raise RuntimeError("the sampler left a mask token in a finished completion")
    counted = counted_tokens(completions.ids, policy.facts.end_token_ids)
    block = policy.blocks(prompt_mask, sampler.length)
    sequences = Sequences(
        prompt_ids, prompt_mask, completions.ids, counted, completions.step, block
    )
    return Sampled(sequences, completions, policy.decode(completions.ids, counted))


def collect(
    policy: Policy,
    sampler: Sampler,
    task: Task,
    prompts: Sequence[Prompt],
    group_size: int,
    generator: torch.Generator,
    rows: int,
    share: Share = WHOLE,
) -> Rollout:
    """Sample `group_size` completions of every prompt and grade them; as `sample` does.

    Every process does its share of both, and then has them all.
    """
    start = time.perf_counter()
    prompts = rendered(policy, prompts)
    texts = [prompt.text for prompt in prompts]
    with share.in_step(policy):
        found = sample(policy, sampler, texts, group_size, generator, rows, share)
    sampled = time.perf_counter()
    own = share.members(prompts)
    asked = [own[index // group_size] for index in range(len(found.texts))]
    rewards = verdicts(task, asked, found.texts)
    graded = time.perf_counter()
    if not share.is_whole:
        found, rewards = gathered(policy, texts, group_size, found, rewards, share)
    spent = torch.tensor([sampled - start, graded - sampled], dtype=torch.float64)
    seconds = torch.stack(share.gather(spent))
    sampling_s, grading_s = seconds.amax(0).tolist()  # of the slowest process
    return Rollout(
        prompts=prompts,
        group_size=group_size,
        sequences=found.sequences,
        completions=found.completions,
        texts=found.texts,
        rewards=rewards,
        sampling_s=sampling_s,
        grading_s=grading_s,
    )


def gathered(
    policy: Policy,
    prompts: Sequence[str],
    group_size: int,
    own: Sampled,
    rewards: Sequence[RewardOutput],
    share: Share,
) -> tuple[Sampled, list[RewardOutput]]:
    """Completions and verdicts of all processes, in the order of the prompts."""
    count, found = len(prompts), own.completions
    spent = share.gather(torch.tensor([found.forwards * len(found.ids)]))
    completions = Completions(
        share.whole(found.ids, count),
        share.whole(found.step, count),
        share.whole(found.log_probability, count),
        float(torch.cat(spent).sum()) / (count * group_size),
    )
    prompt_ids, prompt_mask = policy.encode(prompts)
    prompt_mask = prompt_mask.repeat_interleave(group_size, 0)
    sequences = Sequences(
        prompt_ids.repeat_interleave(group_size, 0),
        prompt_mask,
        completions.ids,
        share.whole(own.sequences.completion_mask, count),
        completions.step,
        policy.blocks(prompt_mask, completions.ids.shape[1]),
    )
    values = [[it.total, it.solved, dict(it.parts), it.reason] for it in rewards]
    graded = [RewardOutput(*value) for value in share.whole_values(values, count)]
    return Sampled(sequences, completions, share.whole_values(own.texts, count)), graded


def rendered(policy: Policy, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts as the tokenizer sees them: in the policy's chat template where it has to be.

    Conversations always; other texts as a user's message with `facts.chat_template`.
    """
    found = []
    for prompt in prompts:
        messages = prompt.messages
        if not messages and policy.facts.chat_template:
            messages = (("user", prompt.text),)
        text = policy.chat_text(messages) if messages else prompt.text
        found.append(replace(prompt, text=text))
    return found


def verdicts(task: Task, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[RewardOutput]:
    """Verdict on each text, together where the task can (`verify_all`)."""
    verify_all = getattr(task, "verify_all", None)
    if verify_all is not None:
        return list(verify_all(prompts, texts))
    return [task.verify(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]


def join(parts: Sequence[Completions]) -> Completions:
    """Several batches of completions as one."""
    samples = sum(len(part.ids) for part in parts)
    return Completions(
        torch.cat([part.ids for part in parts]),
        torch.cat([part.step for part in parts]),
        torch.cat([part.log_probability for part in parts]),
        sum(part.forwards * len(part.ids) for part in parts) / samples,
    )


def no_completions(length: int, device: torch.device) -> Completions:
    """Those of no prompts: where there are fewer of them than processes."""
    ids = torch.zeros((0, length), dtype=torch.long, device=device)
    return Completions(ids, ids, torch.zeros((0, length), device=device), 0.0)


def prompt_record(prompt: Prompt) -> dict[str, object]:
    """A prompt as a plain dict: with what its verifier needs."""
    return {
        "prompt": prompt.text,
        "key": prompt.key,
        "task": prompt.task,
        "data": dict(prompt.data),
    }


def records(rollout: Rollout) -> list[dict[str, object]]:
    """One plain dict per completion; job=grade can grade a line of it again."""
    size = rollout.group_size
    return [
        {
            **prompt_record(rollout.prompts[index // size]),
            "completion": text,
            "reward": verdict.total,
            "solved": verdict.solved,
            "parts": dict(verdict.parts),
            "reason": verdict.reason,
        }
        for index, (text, verdict) in enumerate(zip(rollout.texts, rollout.rewards, strict=True))
    ]


def write_completions(path: Path, rollout: Rollout) -> None:
    """A line for each completion, its record."""
    with path.open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records(rollout))


def truncations(
    sequences: Sequences, end_token_ids: tuple[int, ...], fixed_length: int | None
) -> Bool[Tensor, " sample"]:
    """Completions that the sampler's length cut off: no end token, and not of the fixed length."""
    ids = sequences.completion_ids
    ends = torch.isin(ids, ids.new_tensor(end_token_ids)) & sequences.completion_mask
    return ~ends.any(-1) & (fixed_length is None or ids.shape[1] < fixed_length)


def rollout_metrics(
    rollout: Rollout, end_token_ids: tuple[int, ...], fixed_length: int | None
) -> dict[str, float]:
    """What a phase's completions look like (names as in docs/metrics.md)."""
    reward = rollout.reward
    verdict = ~reward.isnan()
    length = rollout.sequences.length.float()
    truncated = truncations(rollout.sequences, end_token_ids, fixed_length)
    members = verdict.sum(-1)
    squares = centered(reward).square().sum(-1)  # exactly 0 where all rewards are equal
    deviation = (squares / (members - 1).clamp(min=1)).sqrt()
    metrics = {
        "train/reward": reward.nanmean(),
        "train/reward_std": deviation.mean(),
        "train/frac_zero_std": (deviation == 0).float().mean(),
        "train/frac_no_verdict": (~verdict).float().mean(),
        "train/solved": rollout.solved.mean(),
        "train/completions/mean_length": length.mean(),
        "train/completions/min_length": length.min(),
        "train/completions/max_length": length.max(),
        "train/completions/frac_truncated": truncated.float().mean(),
        "train/completions/frac_empty": torch.tensor([not text for text in rollout.texts])
        .float()
        .mean(),
        "train/completions/distinct": torch.tensor(len(set(rollout.texts)) / len(rollout.texts)),
        "sampler/tokens_per_forward": length.mean() / rollout.completions.forwards,
        "time/rollout_s": torch.tensor(rollout.sampling_s),
        "time/reward_s": torch.tensor(rollout.grading_s),
    }
    metrics |= token_metrics(rollout)
    names = sorted({name for item in rollout.rewards for name in item.parts})
    for name in names:
        values = [item.parts[name] for item in rollout.rewards if name in item.parts]
        metrics[f"train/rewards/{name}/mean"] = torch.tensor(values).mean()
    return {name: float(value) for name, value in metrics.items()}


def token_metrics(rollout: Rollout) -> dict[str, Tensor]:
    """What the counted tokens of a phase say: how certain, how uniform, how fast."""
    counted = rollout.sequences.completion_mask
    _, occurrences = rollout.sequences.completion_ids[counted].unique(return_counts=True)
    total = counted.sum()
    return {
        "train/entropy": -masked_mean(rollout.completions.log_probability, counted),
        "train/completions/top_token_share": occurrences.max() / total,
        "perf/tokens_per_s": total / rollout.sampling_s,
    }
