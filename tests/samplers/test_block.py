"""The cached decoder of blocks against published generations and against one without a cache."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from stabledrl.errors import UserError
from stabledrl.estimators.trajectory import Trajectory
from stabledrl.functional.decoding import (
    commit_mask,
    left_to_right,
    linear_time_quota,
    random_order,
    token_probability,
)
from stabledrl.models import fast_dllm_v2, sdar
from stabledrl.policy import Policy
from stabledrl.samplers.block import BlockDiffusion
from stabledrl.samplers.proposal import propose
from stabledrl.types import Completions
from tests.block_policies import block_policy, written
from tests.policies import END, MASK, PAD, left_padded, tiny_policy

SDAR = Path(__file__).parents[1] / "golden/sdar"
GENERATIONS = load_file(SDAR / "generate.safetensors")
NAMES = sorted(name for name in GENERATIONS if not name.startswith("prompt"))
STRATEGIES = {
    "low_confidence_static": (token_probability, None),
    "low_confidence_dynamic": (token_probability, 0.12),
    "sequential": (left_to_right, None),
}
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 4, 4, 20], [15] * 12, [9, 3]]


def golden_policy(folder: Path, block_length: int) -> Policy:
    """The golden checkpoint with blocks of another length; it goes on after end tokens."""
    shutil.copytree(SDAR, folder / "sdar")
    config = json.loads((SDAR / "config.json").read_text()) | {"block_size": block_length}
    (folder / "sdar/config.json").write_text(json.dumps(config))
    policy = sdar.load(str(folder / "sdar"), chat_template=False)
    policy.facts = replace(policy.facts, end_token_ids=())
    return policy


def of_name(name: str) -> tuple[int, BlockDiffusion]:
    """Number of the prompt, and the decoder of a published generation, long enough for it."""
    number, strategy = int(name[1]), name[3:].rpartition("_s")[0]
    passes, block = (int(part[1:]) for part in name.split("_")[-2:])
    confidence, threshold = STRATEGIES[strategy]
    length = 24  # the first block that is not published may lack its last tokens
    steps = passes * length // block
    return number, BlockDiffusion(length, block, steps, 0.0, confidence, threshold)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_published_greedy_generations(tmp_path: Path, name: str) -> None:
    number, sampler = of_name(name)
    policy = golden_policy(tmp_path, sampler.block_length)
    expected, prompt = GENERATIONS[name], GENERATIONS[f"prompt{number}"]
    uniform = sampler.draw(1, torch.Generator())
    found = sampler(policy, prompt, torch.ones_like(prompt) > 0, uniform)
    assert expected.shape[1] % sampler.block_length == 0
    new = expected[:, prompt.shape[1] :]
    assert torch.equal(found.ids[:, : new.shape[1]], new)


@pytest.mark.parametrize("block_length", [4, 8])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@torch.no_grad()
def test_ragged_prompts_in_one_batch(tmp_path: Path, block_length: int, strategy: str) -> None:
    policy = golden_policy(tmp_path, block_length)
    names = [f"p{i}_{strategy}_s{block_length}_b{block_length}" for i in range(3)]
    _, sampler = of_name(names[0])
    prompts = [GENERATIONS[f"prompt{i}"][0].tolist() for i in range(3)]
    found = sampler(policy, *left_padded(prompts), sampler.draw(3, torch.Generator()))
    for row, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        new = GENERATIONS[name][0, len(prompt) :]
        assert torch.equal(found.ids[row, : len(new)], new)


def without_cache(
    sampler: BlockDiffusion, policy: Policy, prompt: list[int], uniform: Tensor
) -> Completions:
    """One row, every pass over the text up to the end of the block."""
    origin = policy.attention.origin  # type: ignore[attr-defined]
    size, start = sampler.block_length, len(prompt)
    first = start if origin == "response" else start - start % size
    text = torch.tensor([prompt + [MASK] * sampler.length])
    step = torch.full((sampler.length,), sampler.most_passes)
    log_probability = torch.zeros(sampler.length)
    passes = 0
    for block, begin in enumerate(range(first, text.shape[1], size)):
        end = min(begin + size, text.shape[1])
        for index in range(sampler.passes):
            masked = torch.zeros(1, size, dtype=torch.bool)
            masked[0, : end - begin] = text[0, begin:end] == MASK
            if not masked.any():
                break
            passes += 1
            number = torch.arange(end) - first
            seen = number.div(size, rounding_mode="floor")
            seen = (seen[:, None] >= seen)[None, None]
            raw = policy.backbone(input_ids=text[:, :end], attention_mask=seen).logits[0, begin:]
            at = block * sampler.passes + index
            token, sure, log_token = propose(
                raw[masked[0, : end - begin]],
                masked,
                uniform[None, at],
                sampler.temperature,
                sampler.confidence,
                MASK,
            )
            quota = sampler.schedule(size, sampler.passes)[index]
            for slot in commit_mask(sure, masked, quota, sampler.threshold)[0].nonzero()[:, 0]:
                place = begin + int(slot)
                text[0, place] = token[0, slot]
                step[place - start] = at
                log_probability[place - start] = log_token[0, slot]
        if (text[0, max(begin, start) : end] == END).any():
            text[0, end:] = PAD
            break
    return Completions(text[:, start:], step[None], log_probability[None], passes + 1.0)


@pytest.mark.parametrize("origin", ["absolute", "response"])
@pytest.mark.parametrize(
    ("block_length", "steps", "confidence", "threshold"),
    [
        (1, 12, token_probability, None),
        (2, 6, token_probability, None),
        (3, 8, random_order, None),
        (4, 12, token_probability, 0.4),
        (4, 3, left_to_right, None),
        (12, 5, random_order, None),
    ],
)
@torch.no_grad()
def test_the_cache_changes_nothing(block_length, steps, confidence, threshold, origin):
    policy = block_policy(block_length, origin)
    sampler = BlockDiffusion(12, block_length, steps, 1.3, confidence, threshold)
    uniform = sampler.draw(len(PROMPTS), torch.Generator().manual_seed(block_length + 1))
    together = sampler(policy, *left_padded(PROMPTS), uniform)
    assert not (together.ids == MASK).any()
    ended = (together.ids == PAD).any(1)
    assert ended.any() or block_length == 12  # rows drop out and others go on
    assert not ended.all()
    passes = []
    for row, prompt in enumerate(PROMPTS):
        alone = without_cache(sampler, policy, prompt, uniform[row])
        assert torch.equal(together.ids[[row]], alone.ids)
        assert torch.equal(together.step[[row]], alone.step)
        torch.testing.assert_close(
            together.log_probability[[row]], alone.log_probability, rtol=1e-4, atol=1e-5
        )
        passes.append(alone.forwards)
        single = sampler(policy, *left_padded([prompt]), uniform[[row]])
        assert torch.equal(single.ids, alone.ids)
        assert single.forwards == alone.forwards
    # a row that has finished its block early waits for the slowest
    assert together.forwards >= sum(passes) / len(passes)
    if block_length == 1:
        assert together.forwards == sum(passes) / len(passes)


@torch.no_grad()
def test_what_the_sampler_chose_is_what_the_likelihood_scores():
    policy = block_policy(4)
    never = torch.tensor([MASK])  # of which the sampler knows, and the likelihood does not
    policy.backbone.get_output_embeddings().register_forward_hook(
        lambda layer, given, logits: logits.index_fill(-1, never, -1e6)
    )
    sampler = BlockDiffusion(12, 4, 6, 1.0)
    uniform = sampler.draw(len(PROMPTS), torch.Generator().manual_seed(1))
    found = sampler(policy, *left_padded(PROMPTS), uniform)
    sequences = written(policy, PROMPTS, found.ids, found.step)
    estimator = Trajectory()
    drawn = estimator.draw(sequences, 1, torch.Generator())
    assert len(drawn.mask) == 2  # two passes over a block: two copies, whatever their number
    value = estimator(policy, sequences, drawn).token_value
    expected = found.log_probability.masked_fill(~sequences.completion_mask, 0)
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_schedule_may_leave_a_pass_out():
    policy = block_policy(4)
    sampler = BlockDiffusion(
        4, 4, 4, 0.0, schedule=lambda size, passes: linear_time_quota(size, passes, 1e-3)
    )
    quota = linear_time_quota(4, 4, 1e-3)
    assert 0 in quota or quota == [1, 1, 1, 1]
    found = sampler(policy, *left_padded([[5, 6, 7, 8]]), sampler.draw(1, torch.Generator()))
    assert found.forwards == 1 + sum(it > 0 for it in quota)


def test_models_that_it_is_not_for():
    sampler = BlockDiffusion(8, 4, 8)
    prompt = left_padded([[5, 6]])
    uniform = sampler.draw(1, torch.Generator())
    with pytest.raises(UserError, match="does not write block by block, take sampler=semi_auto"):
        sampler(tiny_policy(), *prompt, uniform)
    with pytest.raises(UserError, match=r"blocks of 2: set sampler\.block_length=2"):
        sampler(block_policy(2), *prompt, uniform)
    shifted = block_policy(4)
    shifted.facts = replace(shifted.facts, shift_logits=True)
    with pytest.raises(UserError, match="shifted logits is not supported"):
        sampler(shifted, *prompt, uniform)
    assert fast_dllm_v2.load.decodable is False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("length", "block_length", "steps", "line"),
    [
        (10, 4, 10, r"sampler\.block_length=4 does not divide sampler\.length=10"),
        (8, 4, 3, r"sampler\.steps=3 must be a multiple of the 2 blocks"),
        (8, 4, 10, r"sampler\.steps=10 must be a multiple of the 2 blocks and at most"),
    ],
)
def test_numbers_that_do_not_fit(length, block_length, steps, line):
    with pytest.raises(ValueError, match=line):
        BlockDiffusion(length, block_length, steps)
