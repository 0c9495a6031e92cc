"""Rollouts: what is sampled, graded and measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stabledrl.functional.masking import counted_tokens
from stabledrl.policy import Policy
from stabledrl.randomness import keyed_generator
from stabledrl.rollout import Rollout, collect, join, records, rollout_metrics
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from stabledrl.types import Completions, Prompt, RewardOutput, Sequences
from tests.policies import END, MASK, PAD, tiny_policy

PROMPTS = [Prompt(text, "echo", text) for text in ("123", "4567890", "1+2=3,4*5=20")]


class Echo:
    """Remembers what it graded; the reward is the number of characters, none for an empty text."""

    name = "echo"
    fixed_length = None

    def __init__(self) -> None:
        self.graded: list[tuple[str, str]] = []

    def prompts(self, split: str, seed: int, start: int, count: int) -> list[Prompt]:
        return PROMPTS[start : start + count]

    def solution(self, prompt: Prompt) -> str:
        return prompt.text

    def verify(self, prompt: Prompt, completion: str) -> RewardOutput:
        self.graded.append((prompt.text, completion))
        if not completion:
            return RewardOutput(None, False, reason="empty")
        return RewardOutput(float(len(completion)), completion[0] == "1")


def collected(rows: int, sampler: SemiAutoregressive | None = None, **changes: Any) -> Rollout:
    sampler = sampler or SemiAutoregressive(8, 4, 4)
    task = changes.get("task", Echo())
    generator = keyed_generator("completions", 0)
    return collect(tiny_policy(3), sampler, task, PROMPTS, 4, generator, rows)


@pytest.mark.parametrize("rows", [1, 5, 6, 100])
def test_rows_decoded_together_change_no_completion(rows: int) -> None:
    whole, parts = collected(12), collected(rows)
    assert torch.equal(parts.completions.ids, whole.completions.ids)
    assert torch.equal(parts.completions.step, whole.completions.step)
    assert parts.texts == whole.texts
    assert parts.rewards == whole.rewards
    assert parts.completions.forwards == pytest.approx(whole.completions.forwards)


def test_samples_of_a_prompt_are_neighbours_and_differ() -> None:
    task = Echo()
    rollout = collected(12, task=task)
    assert [prompt for prompt, _ in task.graded] == [p.text for p in PROMPTS for _ in range(4)]
    assert [text for _, text in task.graded] == rollout.texts
    assert len(set(rollout.texts)) > 6
    assert rollout.reward.shape == (3, 4)
    ids, _ = tiny_policy().encode([PROMPTS[1].text])
    for row in range(4, 8):
        sequences = rollout.sequences
        assert sequences.prompt_ids[row][sequences.prompt_mask[row]].tolist() == ids[0].tolist()


def test_sampling_moves_no_global_state_and_is_repeatable() -> None:
    before = torch.random.get_rng_state()
    first = collected(12)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(77)
    assert torch.equal(collected(12).completions.ids, first.completions.ids)


class Scripted(SemiAutoregressive):
    """A sampler that returns what the test wrote down."""

    ids: Tensor

    def __call__(self, policy: Policy, *inputs: Tensor) -> Completions:
        count = len(inputs[0])
        zeros = torch.zeros(count, 5)
        return Completions(self.ids[:count], zeros.long(), zeros, 3.0)


def scripted(ids: list[list[int]]) -> Scripted:
    sampler = Scripted(5, 5, 5)
    object.__setattr__(sampler, "ids", torch.tensor(ids))
    return sampler


def test_a_mask_token_left_over_is_an_error() -> None:
    rows = [[5, 5, 5, 5, 5]] * 11 + [[5, 5, 5, END, MASK]]
    with pytest.raises(RuntimeError, match="mask token"):
        collected(12, scripted(rows))


ROWS = [
    [5, 6, END, 7, 8],  # "12", ended
    [5, 6, 7, 8, 9],  # "12345", truncated
    [END, END, END, END, END],  # "", no verdict
    [5, 6, END, PAD, PAD],  # "12" again
]


def test_texts_and_counted_tokens() -> None:
    rollout = collected(12, scripted(ROWS * 3))
    assert rollout.texts[:4] == ["12", "12345", "", "12"]
    counted = rollout.sequences.completion_mask[:4].int().tolist()
    assert counted == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert rollout.reward[0].nan_to_num(-1).tolist() == [2, 5, -1, 2]
    assert rollout.solved.tolist() == [[1, 1, 0, 1]] * 3


def fabricated() -> Rollout:
    """Two groups of three completions of five tokens, written down."""
    ids = torch.tensor([ROWS[0], ROWS[1], ROWS[2], ROWS[1], ROWS[1], [5, 6, 7, 8, END]])
    totals = [1.0, 0.5, None, 0.1, 0.1, 0.1]
    rewards = [
        RewardOutput(
            total, total == 1.0, {"cells": 0.25 * index} | ({"length": -1.0} if not index else {})
        )
        for index, total in enumerate(totals)
    ]
    zeros = torch.zeros(6, 5)
    log_probability = zeros.clone()
    log_probability[:, 0] = torch.tensor([-1.0, -2.0, -3.0, 0.0, -1.0, -2.0])
    log_probability[0, 3:] = -100.0  # after the end token: not counted
    return Rollout(
        prompts=PROMPTS[:2],
        group_size=3,
        sequences=Sequences(ids, ids > 0, ids, counted_tokens(ids, (END,))),
        completions=Completions(ids, zeros.long(), log_probability, 2.0),
        texts=["12", "12345", "", "12345", "12345", "1234"],
        rewards=rewards,
        sampling_s=1.5,
        grading_s=0.25,
    )


def test_metrics_by_hand() -> None:
    metrics = rollout_metrics(fabricated(), (END,), fixed_length=None)
    expected = {
        "train/reward": (1 + 0.5 + 0.3) / 5,
        # sample deviations: of (1, ½) √(2·¼²) = 0.3536, of three times 0.1 nothing
        "train/reward_std": math.sqrt(2) / 4 / 2,
        "train/frac_zero_std": 0.5,
        "train/frac_no_verdict": 1 / 6,
        "train/solved": 1 / 6,
        "train/completions/mean_length": (3 + 5 + 1 + 5 + 5 + 5) / 6,
        "train/completions/min_length": 1,
        "train/completions/max_length": 5,
        "train/completions/frac_truncated": 3 / 6,
        "train/completions/frac_empty": 1 / 6,
        "train/completions/distinct": 4 / 6,
        "sampler/tokens_per_forward": 4 / 2,
        "train/entropy": 9 / 24,
        "train/completions/top_token_share": 5 / 24,  # token 5, and 6 too
        "perf/tokens_per_s": 24 / 1.5,
        "time/rollout_s": 1.5,
        "time/reward_s": 0.25,
        "train/rewards/cells/mean": 0.25 * 15 / 6,
        "train/rewards/length/mean": -1.0,
    }
    assert metrics == pytest.approx(expected)
    # five tokens are whole where five are asked for, too few where it is six
    fixed = rollout_metrics(fabricated(), (END,), fixed_length=5)
    assert fixed["train/completions/frac_truncated"] == 0
    fixed = rollout_metrics(fabricated(), (END,), fixed_length=6)
    assert fixed["train/completions/frac_truncated"] == pytest.approx(3 / 6)


@pytest.mark.parametrize("members", [3, 7, 8])
def test_equal_rewards_have_no_deviation_at_all(members: int) -> None:
    # the float32 mean of seven times 0.1 is not 0.1
    rollout = fabricated()
    ids = rollout.sequences.completion_ids[:1].expand(members, -1)
    rollout = replace(
        rollout,
        group_size=members,
        prompts=PROMPTS[:1],
        sequences=Sequences(ids, ids > 0, ids, counted_tokens(ids, (END,))),
        completions=Completions(ids, ids, torch.zeros(ids.shape), 2.0),
        rewards=[RewardOutput(0.1, False)] * members,
    )
    metrics = rollout_metrics(rollout, (END,), None)
    assert metrics["train/frac_zero_std"] == 1
    assert metrics["train/reward_std"] == 0


def test_a_record_says_what_one_completion_was() -> None:
    written = records(fabricated())
    assert [item["completion"] for item in written] == fabricated().texts
    assert [item["prompt"] for item in written] == ["123"] * 3 + ["4567890"] * 3
    assert [item["reward"] for item in written] == [1.0, 0.5, None, 0.1, 0.1, 0.1]
    assert json.loads(json.dumps(written)) == written


def test_joined_parts_weigh_their_forwards_by_samples() -> None:
    zeros = torch.zeros(3, 2)
    whole = join(
        [
            Completions(zeros.long(), zeros.long(), zeros, 4.0),
            Completions(zeros[:1].long(), zeros[:1].long(), zeros[:1], 8.0),
        ]
    )
    assert whole.forwards == 5.0
    assert whole.ids.shape == (4, 2)
