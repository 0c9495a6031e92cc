"""The decoder against published generations, by hand, and against itself in other batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

from stabledrl.functional.decoding import negative_entropy, random_order, top_margin
from stabledrl.policy import AdapterFacts, Policy
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from tests.policies import (
    END,
    LLADA,
    MASK,
    PAD,
    VOCABULARY,
    fake_policy,
    golden_llada,
    left_padded,
    positional_policy,
    tiny_policy,
)

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 4, 4, 20], [15] * 12]


def run(sampler: SemiAutoregressive, policy: Policy, rows: int = 1, seed: int = 0):
    ids = torch.full((rows, 2), 5)
    uniform = sampler.draw(rows, torch.Generator().manual_seed(seed))
    return sampler(policy, ids, torch.ones_like(ids) > 0, uniform)


GENERATIONS = load_file(LLADA / "generate.safetensors")


@pytest.mark.parametrize("name", sorted(n for n in GENERATIONS if "greedy" in n))
@torch.no_grad()
def test_published_greedy_generations(name: str) -> None:
    # Published code goes on after an end token; so does ours where there is none.
    policy = golden_llada(end_token_ids=())
    steps, length, block = (int(part[1:]) for part in name.split("_")[-3:])
    sampler = SemiAutoregressive(
        length, block, steps, temperature=0.0, guidance_scale=1.5 if "cfg1.5" in name else 0.0
    )
    prompt = GENERATIONS["prompt"]
    mask = torch.ones_like(prompt) > 0
    if name.startswith("ragged"):
        rows = zip(prompt.tolist(), GENERATIONS["ragged_lengths"].tolist(), strict=True)
        prompt, mask = left_padded([row[-count:] for row, count in rows])
    uniform = sampler.draw(len(prompt), torch.Generator())
    completions = sampler(policy, prompt, mask, uniform)
    assert torch.equal(completions.ids, GENERATIONS[name][:, -length:])
    assert completions.forwards == steps * (2 if sampler.guidance_scale else 1)


@pytest.mark.parametrize(("steps", "confidence"), [(8, negative_entropy), (4, top_margin)])
def test_greedy_batches_equal_separate_runs(steps: int, confidence) -> None:
    policy = tiny_policy(3)
    sampler = SemiAutoregressive(8, 4, steps, temperature=0.0)
    for chosen in (sampler, replace(sampler, confidence=confidence)):
        together = chosen(policy, *left_padded(PROMPTS), torch.zeros(3, steps, 2, 4))
        for row, prompt in enumerate(PROMPTS):
            alone = chosen(policy, *left_padded([prompt]), torch.zeros(1, steps, 2, 4))
            assert torch.equal(together.ids[[row]], alone.ids)
            assert torch.equal(together.step[[row]], alone.step)


def test_sampled_completions_depend_on_their_own_numbers_only() -> None:
    policy = tiny_policy(3)
    sampler = SemiAutoregressive(8, 4, 4, temperature=0.9, confidence=random_order)
    ids, mask = left_padded(PROMPTS)
    uniform = sampler.draw(3, torch.Generator().manual_seed(4))
    together = sampler(policy, ids, mask, uniform)
    order = torch.tensor([2, 0, 1])
    other = sampler(policy, ids[order], mask[order], uniform[order])
    assert torch.equal(other.ids, together.ids[order])
    alone = sampler(policy, ids[1:2, 5:], mask[1:2, 5:], uniform[1:2])
    assert torch.equal(alone.ids, together.ids[1:2])
    torch.testing.assert_close(alone.log_probability, together.log_probability[1:2])
    different = sampler(policy, ids, mask, sampler.draw(3, torch.Generator().manual_seed(5)))
    assert not torch.equal(different.ids, together.ids)


@pytest.mark.parametrize("steps", [8, 4, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_is_left_masked_and_steps_keep_their_quota(steps: int, temperature: float) -> None:
    sampler = SemiAutoregressive(8, 4, steps, temperature)
    completions = run(sampler, tiny_policy(), rows=6)
    assert (completions.ids != MASK).all()
    assert (completions.log_probability <= 0).all()
    unended = ~(completions.ids == END).any(-1)
    for row in completions.step[unended]:
        assert torch.bincount(row, minlength=steps).tolist() == [8 // steps] * steps
        assert row[:4].max() < row[4:].min()  # blocks from left to right


def test_one_step_for_everything() -> None:
    completions = run(SemiAutoregressive(8, 8, 1, 1.0), tiny_policy(), rows=6)
    assert (completions.ids != MASK).all()
    assert (completions.step == 0).all()
    assert completions.forwards == 1


def test_the_remainder_of_a_block_goes_first() -> None:
    policy = positional_policy([{5: 1.0}] * 5, 2)
    completions = run(SemiAutoregressive(5, 5, 3, 0.0), policy)
    # 5 tokens in 3 passes: 2, 2, 1; equal confidence goes from left to right
    assert completions.step.tolist() == [[0, 0, 1, 1, 2]]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 5.0])
def test_the_mask_token_is_never_sampled(temperature: float) -> None:
    likes_masks = torch.zeros(VOCABULARY)
    likes_masks[MASK] = 50.0
    policy = fake_policy(lambda ids: likes_masks.expand(*ids.shape, -1), end_token_ids=())
    completions = run(SemiAutoregressive(8, 4, 4, temperature), policy, rows=50)
    assert (completions.ids != MASK).all()
    # its probability is shared out among the 23 others
    expected = torch.full_like(completions.log_probability, 1 / 23).log()
    torch.testing.assert_close(completions.log_probability, expected)


def test_tokens_follow_the_temperature() -> None:
    # p = .8, .2 at T = 2: √.8 : √.2 = 2 : 1
    policy = positional_policy([{5: 0.8, 6: 0.2}], 2)
    sampler = SemiAutoregressive(1, 1, 1, 2.0)
    ids = torch.full((300, 2), 5)
    uniform = ((torch.arange(300) + 0.5) / 300).view(-1, 1, 1, 1).expand(-1, -1, 2, -1)
    completions = sampler(policy, ids, torch.ones_like(ids) > 0, uniform)
    assert int((completions.ids == 5).sum()) == 200
    expected = torch.where(completions.ids == 5, 2 / 3, 1 / 3).log()
    torch.testing.assert_close(completions.log_probability, expected)


CERTAINTY = [{5: 0.9, 6: 0.1}, {5: 0.55, 6: 0.45}, {5: 0.8, 6: 0.2}, {5: 0.6, 6: 0.4}]


def test_the_most_certain_come_first_and_a_threshold_costs_fewer_passes() -> None:
    policy = positional_policy(CERTAINTY, 2)
    sampler = SemiAutoregressive(4, 4, 4, 0.0)
    completions = run(sampler, policy)
    assert completions.step.tolist() == [[0, 3, 1, 2]]
    assert completions.forwards == 4
    # above .7: positions 0 and 2 at once, then one for each pass
    completions = run(replace(sampler, threshold=0.7), policy)
    assert completions.step.tolist() == [[0, 2, 0, 1]]
    assert completions.forwards == 3
    assert run(replace(sampler, threshold=0.5), policy).forwards == 1
    assert run(replace(sampler, threshold=0.95), policy).step.tolist() == [[0, 3, 1, 2]]


def test_a_threshold_lets_every_row_go_at_its_own_pace() -> None:
    # token 5 in the prompt: all certain; otherwise nobody is above the threshold
    def logits(ids: Tensor) -> Tensor:
        value = torch.zeros(*ids.shape, VOCABULARY)
        value[..., 7] = torch.where(ids[:, :1] == 5, 50.0, 1.0)
        return value

    policy = fake_policy(logits)
    sampler = SemiAutoregressive(4, 2, 4, 0.0, threshold=0.9)
    ids = torch.tensor([[5, 5], [6, 6]])
    completions = sampler(policy, ids, ids > 0, sampler.draw(2, torch.Generator()))
    # one pass for each of the two blocks, against two passes for each
    assert completions.step.tolist() == [[0, 0, 2, 2], [0, 1, 2, 3]]
    assert completions.forwards == (2 + 4) / 2


def test_random_order_follows_the_numbers_drawn() -> None:
    policy = positional_policy(CERTAINTY, 2)
    sampler = SemiAutoregressive(4, 4, 4, 0.0, confidence=random_order)
    uniform = torch.zeros(1, 4, 2, 4)
    uniform[:, :, 1] = torch.tensor([0.2, 0.9, 0.1, 0.4])
    ids = torch.full((1, 2), 5)
    completions = sampler(policy, ids, ids > 0, uniform)
    assert completions.step.tolist() == [[2, 0, 3, 1]]
    drawn = [run(sampler, policy, seed=seed).step.tolist()[0] for seed in range(40)]
    assert len({tuple(order) for order in drawn}) > 10
    assert all(sorted(order) == [0, 1, 2, 3] for order in drawn)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_suppressed_end_tokens_wait_for_words(temperature: float) -> None:
    policy = positional_policy([{END: 1.0}, {5: 0.6, 6: 0.4}], 2)
    sampler = SemiAutoregressive(2, 2, 2, temperature)
    ids = torch.full((1, 2), 5)
    uniform = torch.full((1, 2, 2, 2), 0.3)  # takes token 5 at either temperature
    plain = sampler(policy, ids, ids > 0, uniform)
    assert (plain.ids.tolist(), plain.step.tolist()) == ([[END, 5]], [[0, 1]])
    suppressed = replace(sampler, suppress_end=True)(policy, ids, ids > 0, uniform)
    assert (suppressed.ids.tolist(), suppressed.step.tolist()) == ([[END, 5]], [[1, 0]])


def test_suppressed_end_tokens_keep_their_own_order() -> None:
    policy = positional_policy([{END: 0.7, 5: 0.3}, {END: 0.9, 5: 0.1}, {5: 0.5, 6: 0.4}], 2)
    completions = run(SemiAutoregressive(3, 3, 3, 0.0, suppress_end=True), policy)
    assert completions.step.tolist() == [[2, 1, 0]]


def test_a_row_stops_after_the_block_with_its_end_token() -> None:
    def logits(ids: Tensor) -> Tensor:  # the second row ends within its second block
        value = torch.zeros(*ids.shape, VOCABULARY)
        value[..., 7] = 5.0
        value[:, 2 + 3, END] = torch.where(ids[:, 0] == 6, 50.0, 0.0)
        value[:, 2 + 2, END] = 4.0
        return value

    policy = fake_policy(logits)
    ids = torch.tensor([[5, 5], [6, 6]])
    sampler = SemiAutoregressive(8, 2, 8, 0.0)
    completions = sampler(policy, ids, ids > 0, sampler.draw(2, torch.Generator()))
    assert completions.ids.tolist() == [[7] * 8, [7, 7, 7, END, PAD, PAD, PAD, PAD]]
    assert completions.forwards == (8 + 4) / 2
    assert completions.log_probability[1, 4:].tolist() == [0] * 4


def test_guidance_by_hand() -> None:
    # conditional logits: token 5 at 2, unconditional (prompt masked): token 5 at 1, token 6 at 1.5
    def logits(ids: Tensor) -> Tensor:
        value = torch.full((*ids.shape, VOCABULARY), -1e4)
        value[..., 5] = torch.where(ids[:, :1] == MASK, 1.0, 2.0)
        value[..., 6] = 1.5
        return value

    completions = run(SemiAutoregressive(1, 1, 1, 0.0, guidance_scale=2.0), fake_policy(logits))
    # 1 + 3·(2 − 1) = 4 against 1.5 + 3·0
    assert completions.ids.tolist() == [[5]]
    expected = torch.tensor([4.0, 1.5]).log_softmax(0)[0]
    assert float(completions.log_probability) == pytest.approx(float(expected))
    assert completions.forwards == 2


def test_randomness_comes_from_the_generator_alone() -> None:
    sampler = SemiAutoregressive(8, 4, 4)
    before = torch.random.get_rng_state()
    drawn = sampler.draw(5, torch.Generator().manual_seed(1))
    assert drawn.shape == (5, 4, 2, 4)
    # in sample order: fewer samples are a prefix
    assert torch.equal(sampler.draw(2, torch.Generator().manual_seed(1)), drawn[:2])
    run(sampler, tiny_policy())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert sampler.greedy() == replace(sampler, temperature=0.0)


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((8, 3, 8), ("sampler.block_length=3", "sampler.length=8")),
        ((8, 4, 3), ("sampler.steps=3", "2 blocks")),
        ((8, 4, 10), ("sampler.steps=10", "sampler.length=8")),
        ((8, 16, 8), ("sampler.block_length=16", "sampler.length=8")),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(
    sizes: tuple[int, int, int], names: tuple[str, str]
) -> None:
    with pytest.raises(ValidationError) as refusal:
        SemiAutoregressive(*sizes)
    assert all(name in str(refusal.value) for name in names)


def test_two_end_tokens() -> None:
    policy = positional_policy([{5: 1.0}, {9: 1.0}, {6: 1.0}, {6: 1.0}], 2)
    policy.facts = AdapterFacts(MASK, (END, 9), PAD)
    assert run(SemiAutoregressive(4, 2, 4, 0.0), policy).ids.tolist() == [[5, 9, PAD, PAD]]
