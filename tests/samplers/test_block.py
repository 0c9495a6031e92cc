"""Block diffusion: published generations, a plain decoder without cache, and whom a row costs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

from stabledrl.attention.views import View
from stabledrl.errors import UserError
from stabledrl.estimators.trajectory import Trajectory
from stabledrl.functional.decoding import (
    left_to_right,
    linear_time_quota,
    negative_entropy,
    random_order,
    token_probability,
    top_margin,
    transfer_quota,
)
from stabledrl.models import fast_dllm_v2, sdar
from stabledrl.policy import Policy
from stabledrl.samplers.block import BlockDiffusion
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from stabledrl.types import Completions, Sequences
from tests.block_policies import block_policy, written
from tests.policies import END, MASK, PAD, left_padded, tiny_policy

SDAR = Path(__file__).parents[1] / "golden/sdar"
GENERATIONS = load_file(SDAR / "generate.safetensors")
ORIGINS = ("absolute", "response")
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 4, 4, 20], [15] * 12, [9, 8, 7, 6]]


def with_ends(policy: Policy, *ends: int) -> Policy:
    """Other end tokens; without any, a policy never stops."""
    policy.facts = replace(policy.facts, end_token_ids=ends)
    return policy


def run(
    sampler: BlockDiffusion, policy: Policy, prompts: list[list[int]], seed: int = 0
) -> Completions:
    uniform = sampler.draw(len(prompts), torch.Generator().manual_seed(seed))
    return sampler(policy, *left_padded(prompts), uniform)


class Plain:
    """One row, no cache, no padding: every pass reads the text up to the end of the block."""

    def __init__(self, sampler: BlockDiffusion, policy: Policy, origin: str) -> None:
        self.sampler, self.policy, self.origin = sampler, policy, origin
        self.passes = 0

    def block(self, index: int, prompt_length: int) -> int:
        first = prompt_length if self.origin == "response" else 0
        return (index - first) // self.sampler.block_length

    @torch.no_grad()
    def __call__(self, prompt: list[int], uniform: Tensor) -> tuple[list[int], list[int], list]:
        sampler, facts, size = self.sampler, self.policy.facts, len(prompt)
        text = prompt + [facts.mask_token_id] * sampler.length
        blocks = [self.block(index, size) for index in range(len(text))]
        step, scores = [-1] * len(text), [0.0] * len(text)
        quota = sampler.schedule(sampler.block_length, sampler.passes)
        for number in sorted(set(blocks[size:])):
            places = [i for i in range(size, len(text)) if blocks[i] == number]
            end = places[-1] + 1
            for index, due in enumerate(quota):
                left = [i for i in places if text[i] == facts.mask_token_id]
                if not left:
                    break
                if not due and sampler.threshold is None:
                    continue
                drawn = uniform[index][:, [i - size for i in left]]
                tokens, sure, log = self.propose(text[:end], blocks[:end], left, drawn)
                order = sorted(range(len(left)), key=lambda j: -sure[j])
                chosen = set(order[:due])
                if sampler.threshold is not None:
                    chosen |= {j for j in order if sure[j] > sampler.threshold}
                for j in chosen:
                    text[left[j]], step[left[j]] = tokens[j], self.passes
                    scores[left[j]] = log[j]
                self.passes += 1
            if any(text[i] in facts.end_token_ids for i in places):
                text[end:] = [facts.pad_token_id] * (len(text) - end)
                break
        steps = [self.passes if s < 0 else s for s in step]
        return text[size:], steps[size:], scores[size:]

    def propose(self, text: list[int], blocks: list[int], left: list[int], drawn: Tensor):
        ids, number = torch.tensor([text]), torch.tensor(blocks)
        seen = (number[:, None] >= number[None, :])[None, None]
        selection = torch.zeros_like(ids, dtype=torch.bool)
        selection[0, left] = True
        view = View(torch.arange(len(text))[None], seen)
        logits = self.policy(ids, ids > -1, selection, view)
        logits[:, self.policy.facts.mask_token_id] = float("-inf")
        temperature = self.sampler.temperature
        law = (logits / (temperature or 1.0)).softmax(-1)
        tokens = (law.cumsum(-1) <= drawn[0][:, None]).sum(-1)
        tokens = tokens if temperature else logits.argmax(-1)
        sure = self.sampler.confidence(logits, tokens, drawn[1])
        log = law.gather(-1, tokens[:, None])[:, 0].log()
        return tokens.tolist(), sure.tolist(), log.tolist()


def assert_as_plain(
    sampler: BlockDiffusion, policy: Policy, prompts: list[list[int]], origin: str
) -> Completions:
    """The batch is, row by row, what a decoder without cache writes."""
    uniform = sampler.draw(len(prompts), torch.Generator().manual_seed(1))
    completions = sampler(policy, *left_padded(prompts), uniform)
    total = 0
    for row, prompt in enumerate(prompts):
        plain = Plain(sampler, policy, origin)
        ids, step, scores = plain(prompt, uniform[row])
        assert completions.ids[row].tolist() == ids
        assert completions.step[row].tolist() == step
        own = completions.log_probability[row]
        torch.testing.assert_close(own, torch.tensor(scores), rtol=1e-4, atol=1e-4)
        total += plain.passes
    assert completions.forwards == pytest.approx(total / len(prompts))
    return completions


# --- published generations ---


@pytest.fixture(scope="module")
def published() -> Policy:
    """The published tiny SDAR; without end tokens it never stops, as the published sampler."""
    return sdar.load(str(SDAR), chat_template=False)


def of_blocks(policy: Policy, block_length: int) -> Policy:
    policy.facts = replace(policy.facts, end_token_ids=(), block_length=block_length)
    return policy


def decoder(strategy: str, passes: int, block_length: int, tokens: int) -> BlockDiffusion:
    """In whole blocks at least as many tokens: later blocks move none of them."""
    blocks = -(-tokens // block_length)
    return BlockDiffusion(
        length=blocks * block_length,
        block_length=block_length,
        steps=blocks * passes,
        temperature=0.0,
        confidence=left_to_right if strategy == "sequential" else token_probability,
        threshold=0.12 if strategy.endswith("dynamic") else None,
    )


NAMES = sorted(name for name in GENERATIONS if not name.startswith("prompt"))
SETTINGS = sorted({name.partition("_")[2] for name in NAMES})


def parts(setting: str) -> tuple[str, int, int]:
    strategy, passes, block_length = setting.rsplit("_", 2)
    return strategy, int(passes[1:]), int(block_length[1:])


@pytest.mark.parametrize("name", NAMES)
def test_published_greedy_generations(name: str, published: Policy) -> None:
    prompt = GENERATIONS[f"prompt{name[1]}"][0].tolist()
    expected = GENERATIONS[name][0, len(prompt) :].tolist()
    strategy, passes, block_length = parts(name.partition("_")[2])
    sampler = decoder(strategy, passes, block_length, len(expected))
    completions = run(sampler, of_blocks(published, block_length), [prompt])
    assert completions.ids[0, : len(expected)].tolist() == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_published_greedy_generations_in_one_ragged_batch(setting: str, published: Policy) -> None:
    names = [f"p{number}_{setting}" for number in range(3) if f"p{number}_{setting}" in GENERATIONS]
    prompts = [GENERATIONS[f"prompt{name[1]}"][0].tolist() for name in names]
    expected = [
        GENERATIONS[name][0, len(prompt) :].tolist()
        for name, prompt in zip(names, prompts, strict=True)
    ]
    strategy, passes, block_length = parts(setting)
    sampler = decoder(strategy, passes, block_length, max(map(len, expected)))
    completions = run(sampler, of_blocks(published, block_length), prompts)
    for row, tokens in enumerate(expected):
        assert completions.ids[row, : len(tokens)].tolist() == tokens


# --- against the plain decoder ---

CONFIDENCES = (token_probability, left_to_right, random_order, negative_entropy, top_margin)
cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 50),
        "block_length": st.sampled_from([1, 2, 3, 4]),
        "blocks": st.integers(1, 4),
        "passes": st.integers(1, 4),
        "origin": st.sampled_from(ORIGINS),
        "prompts": st.lists(st.integers(1, 9), min_size=1, max_size=4),
        "temperature": st.sampled_from([0.0, 0.7, 1.0, 2.0]),
        "confidence": st.sampled_from(CONFIDENCES),
        "threshold": st.sampled_from([None, 0.3, 0.8]),
    }
)


@settings(deadline=None, max_examples=80)
@given(cases)
def test_the_cache_changes_nothing(case: dict) -> None:
    generator = torch.Generator().manual_seed(case["seed"])
    prompts = [torch.randint(3, 20, (n,), generator=generator).tolist() for n in case["prompts"]]
    size, blocks = case["block_length"], case["blocks"]
    sampler = BlockDiffusion(
        length=size * blocks,
        block_length=size,
        steps=blocks * min(case["passes"], size),
        temperature=case["temperature"],
        confidence=case["confidence"],
        threshold=case["threshold"],
    )
    policy = block_policy(size, case["origin"], case["seed"])
    completions = assert_as_plain(sampler, policy, prompts, case["origin"])
    assert (completions.ids != MASK).all()


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("ends", [(END,), (END, 9, 12, 17), tuple(range(3, 20))])
def test_rows_that_drop_out_change_nothing(origin: str, ends: tuple[int, ...]) -> None:
    """Many end tokens: rows end in different blocks, some in their first."""
    policy = with_ends(block_policy(3, origin), *ends)
    sampler = BlockDiffusion(12, 3, 8, temperature=1.5, threshold=0.5)
    prompts = [[5 + row % 3] * (1 + row) for row in range(12)]
    completions = assert_as_plain(sampler, policy, prompts, origin)
    if len(ends) == 4:
        assert len(set(completions.step[:, -1].tolist())) > 1


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_batch_is_its_rows_in_any_order(origin: str) -> None:
    policy = block_policy(4, origin)
    sampler = BlockDiffusion(12, 4, 6, 0.9, confidence=random_order)
    ids, mask = left_padded(PROMPTS)
    uniform = sampler.draw(4, torch.Generator().manual_seed(4))
    together = sampler(policy, ids, mask, uniform)
    order = torch.tensor([2, 0, 3, 1])
    other = sampler(policy, ids[order], mask[order], uniform[order])
    assert torch.equal(other.ids, together.ids[order])
    assert torch.equal(other.step, together.step[order])
    spent = 0.0
    for row, prompt in enumerate(PROMPTS):
        alone = sampler(policy, *left_padded([prompt]), uniform[[row]])
        assert torch.equal(alone.ids, together.ids[[row]])
        assert torch.equal(alone.step, together.step[[row]])
        torch.testing.assert_close(alone.log_probability, together.log_probability[[row]])
        spent += alone.forwards
    assert together.forwards == pytest.approx(spent / 4)
    different = sampler(policy, ids, mask, sampler.draw(4, torch.Generator().manual_seed(5)))
    assert not torch.equal(different.ids, together.ids)


def test_extra_padding_changes_nothing() -> None:
    policy = block_policy(4)
    sampler = BlockDiffusion(8, 4, 4, 1.0)
    ids, mask = left_padded(PROMPTS)
    uniform = sampler.draw(4, torch.Generator().manual_seed(4))
    wide, hidden = (torch.nn.functional.pad(it, (5, 0)) for it in (ids, mask))
    one, other = sampler(policy, ids, mask, uniform), sampler(policy, wide, hidden, uniform)
    assert torch.equal(one.ids, other.ids)


def test_an_empty_prompt() -> None:
    sampler, policy = BlockDiffusion(8, 4, 4, 1.0), with_ends(block_policy(4))
    ids = torch.zeros(1, 0, dtype=torch.int64)
    uniform = sampler.draw(1, torch.Generator().manual_seed(0))
    found = sampler(policy, ids, ids > 0, uniform)
    # as behind a prompt that is nothing but padding
    padded = sampler(policy, torch.zeros_like(found.ids), found.ids < 0, uniform)
    assert found.ids.equal(padded.ids)
    assert found.ids[0].tolist() == Plain(sampler, policy, "absolute")([], uniform[0])[0]


def test_decoding_in_training_with_checkpointed_layers() -> None:
    policy = block_policy(4)
    sampler = BlockDiffusion(12, 4, 6, 1.0)
    expected = run(sampler, policy, PROMPTS)
    policy.backbone.activation_checkpointing_enable()
    policy.train()
    again = run(sampler, policy, PROMPTS)
    assert torch.equal(again.ids, expected.ids)
    torch.testing.assert_close(again.log_probability, expected.log_probability)


# --- the likelihood of what was written ---


def without_masks(policy: Policy) -> Policy:
    """Its mask token is never predicted: a likelihood, unlike a sampler, does not leave it out."""
    head = policy.backbone.get_output_embeddings()
    bias = torch.zeros(len(head.weight))
    bias[MASK] = -1e9
    head.bias = torch.nn.Parameter(bias)
    return policy


@torch.no_grad()
@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("block_length", [1, 3, 4])
@pytest.mark.parametrize("threshold", [None, 0.4])
def test_log_probabilities_are_those_of_the_recorded_states(
    origin: str, block_length: int, threshold: float | None
) -> None:
    """Every token scored by the staircase in the state in which it was committed."""
    policy = without_masks(block_policy(block_length, origin))
    blocks = 12 // block_length
    sampler = BlockDiffusion(12, block_length, blocks * min(block_length, 3), 1.0)
    sampler = replace(sampler, threshold=threshold)
    ids, mask = left_padded(PROMPTS)
    completions = sampler(policy, ids, mask, sampler.draw(4, torch.Generator().manual_seed(2)))
    step, decided = completions.step, completions.log_probability != 0
    ended = (completions.ids == END).any(-1)
    assert decided[~ended].all()
    block = policy.blocks(mask, 12)
    sequences = Sequences(ids, mask, completions.ids, decided, step, block)
    own, scored = sequences.completion_block, torch.zeros(4, 12)
    for row in range(4):
        for number in range(int(own[row].max()) + 1):
            current = own[row] == number
            for state in step[row, current & decided[row]].unique():
                hidden = current & (step[row] >= state)
                values = policy.log_likelihood(sequences[row : row + 1], hidden[None])[0]
                now = current & (step[row] == state)
                scored[row, now] = values[now]
    found = completions.log_probability
    torch.testing.assert_close(found[decided], scored[decided], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_trajectory_scores_what_was_chosen() -> None:
    policy = without_masks(block_policy(4))
    sampler = BlockDiffusion(12, 4, 6, 1.0)
    found = run(sampler, policy, PROMPTS, seed=1)
    sequences = written(policy, PROMPTS, found.ids, found.step)
    estimator = Trajectory()
    drawn = estimator.draw(sequences, 1, torch.Generator())
    assert len(drawn.mask) == 2  # two passes over a block: two copies, whatever their number
    value = estimator(policy, sequences, drawn).token_value
    expected = found.log_probability.masked_fill(~sequences.completion_mask, 0)
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


# --- what it costs ---


def always(token: int, certainty: float = 50.0) -> Policy:
    """A block-causal policy that wants one token everywhere."""
    policy = block_policy(4)
    head = policy.backbone.get_output_embeddings()
    head.weight = torch.nn.Parameter(torch.zeros_like(head.weight))
    head.bias = torch.nn.Parameter(certainty * (torch.arange(len(head.weight)) == token))
    return policy


@pytest.mark.parametrize(("tail", "passes"), [(0, 4), (1, 3), (3, 1)])
def test_a_completion_that_ends_in_its_first_block_costs_its_passes_only(
    tail: int, passes: int
) -> None:
    policy = always(END)
    completions = run(BlockDiffusion(16, 4, 16), policy, [[5] * (4 + tail)] * 2)
    first = 4 - tail
    assert completions.ids.tolist() == [[END] * first + [PAD] * (16 - first)] * 2
    assert completions.step.tolist() == [[*range(passes)] + [passes] * (16 - first)] * 2
    assert completions.log_probability[:, first:].eq(0).all()
    assert completions.forwards == passes


def test_end_tokens_of_the_prompt_end_nothing() -> None:
    completions = run(BlockDiffusion(8, 4, 8), always(7), [[5, 5, 5, 5, END, END]])
    assert completions.ids.tolist() == [[7] * 8]
    assert completions.forwards == 2 + 4 + 2


@pytest.mark.parametrize(("steps", "passes"), [(16, 16), (8, 8), (4, 5), (12, 11)])
def test_passes_of_a_straddling_completion(steps: int, passes: int) -> None:
    """Blocks of 2, 4, 4, 4 and 2 new tokens; 3 passes share 4 as 2, 1, 1, and 2 as 2."""
    completions = run(BlockDiffusion(16, 4, steps), always(7), [[5] * 6])
    each = {16: [1, 1], 8: [2], 4: [2], 12: [2]}[steps]
    whole = {16: [1] * 4, 8: [2, 2], 4: [4], 12: [2, 1, 1]}[steps]
    quota = each + whole * 3 + each
    expected = [index for index, count in enumerate(quota) for _ in range(count)]
    assert completions.step.tolist() == [expected]
    assert completions.forwards == len(quota) == passes


def test_a_threshold_lets_every_row_go_at_its_own_pace() -> None:
    sampler = BlockDiffusion(8, 4, 8, 0.0, threshold=0.9)
    assert run(sampler, always(7), PROMPTS[:1]).forwards == 3  # 1, 4 and 3 tokens
    assert run(sampler, always(7), PROMPTS[3:]).forwards == 2  # 4 and 4
    assert run(sampler, always(7), [PROMPTS[0], PROMPTS[3]]).forwards == 2.5
    unsure = run(sampler, always(7, 0.1), PROMPTS[3:])
    assert unsure.step.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_a_pass_reads_the_rows_that_need_it_and_no_text_twice() -> None:
    policy = always(7)
    read: list[tuple[int, ...]] = []
    forward = policy.forward

    def counted(ids: Tensor, *rest: object) -> Tensor:
        read.append(tuple(ids.shape))
        return forward(ids, *rest)  # type: ignore[arg-type]

    policy.forward = counted  # type: ignore[method-assign]
    run(BlockDiffusion(8, 4, 4), policy, [[5] * 8, [5] * 7])
    # prompt with the first block, of which the second row has one token: one pass instead of two
    assert read == [(2, 8 + 4), (1, 4), (2, 4 + 4), (2, 4), (1, 4 + 4), (1, 4)]


def test_schedules_with_passes_that_commit_nothing() -> None:
    schedule = partial(linear_time_quota, epsilon=0.5)
    assert schedule(4, 4) == [0, 0, 0, 4]
    completions = run(BlockDiffusion(8, 4, 8, schedule=schedule), always(7), [[5] * 4])
    assert completions.step.tolist() == [[0] * 4 + [1] * 4]


def test_left_to_right_is_the_order_whatever_the_probabilities() -> None:
    policy = with_ends(block_policy(4))
    completions = run(BlockDiffusion(8, 4, 4, 1.0, left_to_right), policy, [[5] * 4])
    assert completions.step.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3]]
    plain = SemiAutoregressive(8, 4, 4, 1.0, left_to_right)
    ids = torch.full((1, 4), 5)
    found = plain(tiny_policy(), ids, ids > 0, plain.draw(1, torch.Generator().manual_seed(0)))
    assert found.step.tolist()[0][:4] == [0, 0, 1, 1]


def test_randomness_comes_from_the_generator_alone() -> None:
    sampler = BlockDiffusion(8, 4, 4)
    before = torch.random.get_rng_state()
    drawn = sampler.draw(5, torch.Generator().manual_seed(1))
    assert drawn.shape == (5, 2, 2, 8)
    # in sample order: fewer samples are a prefix
    assert torch.equal(sampler.draw(2, torch.Generator().manual_seed(1)), drawn[:2])
    run(sampler, block_policy(4), PROMPTS)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert sampler.greedy() == replace(sampler, temperature=0.0)
    assert sampler.schedule is transfer_quota


def test_a_schedule_that_leaves_masks_does_not_hide_them() -> None:
    """A rollout refuses a completion with a mask token."""
    sampler = BlockDiffusion(8, 4, 4, schedule=lambda tokens, passes: [1] * passes)
    assert run(sampler, always(7), [[5] * 4]).ids.tolist() == [[7, 7, MASK, MASK] * 2]


# --- refusals ---


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((18, 4, 18), ("sampler.block_length=4", "sampler.length=18")),
        ((8, 4, 3), ("sampler.steps=3", "2 blocks")),
        ((8, 4, 10), ("sampler.steps=10", "sampler.length=8")),
        ((8, 16, 8), ("sampler.block_length=16", "sampler.length=8")),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(
    sizes: tuple[int, int, int], names: tuple[str, str]
) -> None:
    with pytest.raises(ValidationError) as refusal:
        BlockDiffusion(*sizes)
    assert all(name in str(refusal.value) for name in names)


def test_models_that_are_decoded_another_way_are_refused() -> None:
    sampler = BlockDiffusion(8, 4, 4)
    with pytest.raises(UserError, match="does not write block by block, take sampler=semi_auto"):
        run(sampler, tiny_policy(), PROMPTS)
    with pytest.raises(UserError, match=r"blocks of 2: set sampler\.block_length=2$"):
        run(sampler, block_policy(2), PROMPTS)
    shifted = block_policy(4)
    shifted.facts = replace(shifted.facts, shift_logits=True)
    with pytest.raises(UserError, match="shifted logits is not supported"):
        run(sampler, shifted, PROMPTS)
    assert fast_dllm_v2.load.decodable is False  # type: ignore[attr-defined]
