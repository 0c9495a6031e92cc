"""One pass over all blocks against a pass for each: values, gradients, and who moves whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stabledrl.attention.bidirectional import Bidirectional
from stabledrl.attention.block_separate import BlockSeparate
from stabledrl.attention.staircase import Staircase, pack
from stabledrl.errors import UserError
from stabledrl.models import sdar
from stabledrl.policy import Policy
from stabledrl.types import Sequences
from tests.block_policies import block_policy, written
from tests.policies import END, MASK, tiny_policy

SDAR = Path(__file__).parents[1] / "golden/sdar"
ORIGINS = ("absolute", "response")


class Shape(NamedTuple):
    """Of a case: tokens of ragged prompts and of completions, masks for each."""

    seed: int
    block_length: int
    origin: str
    prompts: list[int]
    size: int
    draws: int


shapes = st.builds(
    Shape,
    seed=st.integers(0, 10**6),
    block_length=st.sampled_from([1, 2, 3, 4, 8]),
    origin=st.sampled_from(ORIGINS),
    prompts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    size=st.integers(1, 10),
    draws=st.integers(1, 3),
)


def case_of(shape: Shape) -> tuple[Policy, Sequences, Tensor]:
    """Completions with or without end token, any masks."""
    generator = torch.Generator().manual_seed(shape.seed)
    policy, size, draws = block_policy(shape.block_length, shape.origin), shape.size, shape.draws
    prompts = [torch.randint(3, 20, (n,), generator=generator).tolist() for n in shape.prompts]
    completions = torch.randint(3, 20, (len(prompts), size), generator=generator)
    ends = torch.randint(0, 2 * size, (len(prompts), 1), generator=generator)
    completions[torch.arange(size) == ends] = END
    sequences = written(policy, prompts, completions)
    mask = torch.rand(draws, *completions.shape, generator=generator) < 0.5
    return policy, sequences, mask | ~sequences.completion_mask


def gradient(policy: Policy, attention, sequences: Sequences, mask: Tensor) -> Tensor:
    policy.attention = attention
    value = policy.log_likelihood(sequences, mask).square().sum()
    parameters = list(policy.parameters())
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


@settings(deadline=None, max_examples=60)
@given(shapes)
def test_one_pass_is_a_pass_for_every_block(shape):
    policy, sequences, mask = case_of(shape)
    with torch.no_grad():
        together = policy.log_likelihood(sequences, mask)
        policy.attention = BlockSeparate(origin=shape.origin)
        separate = policy.log_likelihood(sequences, mask)
    assert together.shape == mask.shape
    assert torch.equal(together != 0, mask & sequences.completion_mask)
    torch.testing.assert_close(together, separate, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=10)
@given(shapes)
def test_gradients_are_the_same(shape):
    policy, sequences, mask = case_of(shape)
    if not (mask & sequences.completion_mask).any():
        return
    policy, origin = policy.double(), shape.origin  # but for the float32 of likelihoods
    ours = gradient(policy, Staircase(origin=origin), sequences, mask)
    theirs = gradient(policy, BlockSeparate(origin=origin), sequences, mask)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6 * float(theirs.abs().max()))


@torch.no_grad()
@pytest.mark.parametrize("origin", ORIGINS)
def test_padding_changes_nothing(origin):
    policy = block_policy(4, origin)
    prompts = [[5, 6, 7], [8] * 9, [9, 10, 11, 12]]
    generator = torch.Generator().manual_seed(0)
    completions = torch.randint(3, 20, (3, 10), generator=generator)
    completions[1, 2] = END
    mask = torch.rand(2, 3, 10, generator=generator) < 0.6
    together = policy.log_likelihood(written(policy, prompts, completions), mask)
    for row, prompt in enumerate(prompts):
        one = written(policy, [prompt], completions[[row]])
        alone = policy.log_likelihood(one, mask[:, [row]])
        torch.testing.assert_close(together[:, [row]], alone, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_block_is_moved_by_clean_blocks_before_it_alone():
    policy = block_policy(3)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 13]])
    sequences = written(policy, [[3, 4, 5]], ids)  # blocks 1, 2, 3 of three tokens
    mask = torch.ones_like(ids) > 0
    start = policy.log_likelihood(sequences, mask)
    for place in range(9):
        other = ids.clone()
        other[0, place] = 14
        moved = policy.log_likelihood(replace(sequences, completion_ids=other), mask) != start
        block = place // 3
        moved[0, place] = False  # another token is scored there
        assert not moved[0, : 3 * (block + 1)].any()
        assert moved[0, 3 * (block + 1) :].all()


@torch.no_grad()
def test_logits_by_hand_from_the_golden_model():
    # SDAR's own file, blocks of 4: a prompt of 6 ends inside block 1, which the answer goes on
    policy = sdar.load(str(SDAR), chat_template=False)
    prompt, answer = [20, 21, 22, 23, 24, 25], torch.tensor([[30, 31, 32, 33, 34, 35]])
    sequences = written(policy, [prompt], answer)
    mask = torch.tensor([[0, 1, 1, 0, 1, 1]]) > 0
    value = policy.log_likelihood(sequences, mask)
    noisy = answer.masked_fill(mask, 95)[0].tolist()
    for begin, end in ((0, 2), (2, 6)):  # block 1 holds prompt[4:] and answer[:2], block 2 the rest
        text = torch.tensor([prompt + answer[0, :begin].tolist() + noisy[begin:end]])
        number = torch.arange(text.shape[1]) // 4
        seen = number[:, None] >= number
        raw = policy.backbone(input_ids=text, attention_mask=seen[None, None]).logits[0]
        for place in range(begin, end):
            if mask[0, place]:
                expected = raw.log_softmax(-1)[len(prompt) + place, answer[0, place]]
                torch.testing.assert_close(value[0, place], expected, rtol=1e-5, atol=1e-5)


def test_no_column_that_nobody_reads():
    policy = block_policy(4)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]])
    aligned = pack(written(policy, [[3] * 8], ids), torch.ones(1, 1, 12) > 0, MASK)
    assert aligned.ids.shape[1] == 8 + 8 + 12  # the prompt, two clean blocks, three noisy ones
    twice = pack(written(policy, [[3] * 8], ids), torch.ones(2, 1, 12) > 0, MASK)
    assert twice.ids.shape[1] == 8 + 8 + 2 * 12  # the clean stream is shared
    straddling = pack(written(policy, [[3] * 6], ids[:, :10]), torch.ones(1, 1, 10) > 0, MASK)
    # blocks 4-7 (two of them prompt), 8-11 and 12-15: the noisy copy has the prompt's two as well
    assert straddling.ids.shape[1] == 6 + 6 + (2 + 10)
    assert straddling.position[0, 12:].tolist() == list(range(4, 16))
    ids[0, 2] = END
    short = pack(written(policy, [[3] * 8], ids), torch.ones(1, 1, 12) > 0, MASK)
    assert short.ids.shape[1] == 8 + 0 + 4  # ends in its first block


@pytest.mark.slow  # compiles
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@torch.no_grad()
def test_flex_attention_scores_the_same():
    policy = block_policy(4)
    generator = torch.Generator().manual_seed(0)
    completions = torch.randint(3, 20, (2, 12), generator=generator)
    sequences = written(policy, [[5, 6, 7], [8] * 9], completions)
    mask = torch.rand(2, 2, 12, generator=generator) < 0.6
    expected = policy.log_likelihood(sequences, mask)
    policy.attention = Staircase(flex=True)
    found = policy.log_likelihood(sequences, mask)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_block_causal_models_do_not_do():
    policy = block_policy(4)
    sequences = written(policy, [[3] * 4], torch.full((1, 4), 5))
    mask = torch.ones(1, 4) > 0
    for attention in (Staircase(), BlockSeparate()):
        policy.attention = attention
        with pytest.raises(UserError, match="reads the prompt as it is: take a masking that"):
            policy.log_likelihood(sequences, mask, mask)
        with pytest.raises(ValueError, match="made for a model without blocks"):
            policy.log_likelihood(replace(sequences, block=None), mask)


def test_a_model_without_blocks_has_none():
    policy = tiny_policy()
    assert isinstance(policy.attention, Bidirectional)
    assert policy.blocks(torch.ones(1, 3) > 0, 4) is None
    assert isinstance(sdar.load(str(SDAR)).attention, Staircase)
