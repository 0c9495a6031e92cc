"""Dream's decoding: published greedy generations, and ragged batches of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stabledrl.functional.decoding import (
    linear_time_quota,
    negative_entropy,
    token_probability,
    top_margin,
)
from stabledrl.models.dream import load
from stabledrl.policy import Policy
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from tests.policies import left_padded

DREAM = Path(__file__).parents[1] / "golden/dream"
GENERATIONS = load_file(DREAM / "generate.safetensors")
CONFIDENCE = {
    "entropy": negative_entropy,
    "maskgit_plus": token_probability,
    "topk_margin": top_margin,
}


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The published tiny Dream; without end tokens it never stops, as the published sampler."""
    found = load(str(DREAM), chat_template=False)
    found.facts = replace(found.facts, end_token_ids=())
    return found


def decoder(name: str) -> SemiAutoregressive:
    algorithm, _, steps = name.rpartition("_s")
    schedule = partial(linear_time_quota, epsilon=1e-3)
    return SemiAutoregressive(16, 16, int(steps), 0.0, CONFIDENCE[algorithm], schedule=schedule)


@pytest.mark.parametrize("name", sorted(GENERATIONS.keys() - {"prompt"}))
def test_published_greedy_generations(name: str, policy: Policy) -> None:
    prompt, sampler = GENERATIONS["prompt"], decoder(name)
    uniform = sampler.draw(len(prompt), torch.Generator())
    completions = sampler(policy, prompt, torch.ones_like(prompt) > 0, uniform)
    assert completions.ids.equal(GENERATIONS[name][:, 8:])
    passes = sum(quota > 0 for quota in linear_time_quota(16, sampler.steps, 1e-3))
    assert completions.forwards == passes


@pytest.mark.parametrize("name", ["entropy_s8", "topk_margin_s16"])
def test_ragged_batches_equal_separate_runs(name: str, policy: Policy) -> None:
    rows = [GENERATIONS["prompt"][0].tolist()[start:] for start in (0, 3, 6)]
    sampler = decoder(name)
    uniform = sampler.draw(3, torch.Generator())
    together = sampler(policy, *left_padded(rows), uniform)
    for number, row in enumerate(rows):
        alone = sampler(policy, *left_padded([row]), uniform[[number]])
        assert together.ids[[number]].equal(alone.ids)
        assert together.step[[number]].equal(alone.step)
