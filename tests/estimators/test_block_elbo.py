"""The block ELBO against enumeration and against the left-to-right likelihood."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from torch import Tensor

from stabledrl.attention.block_separate import BlockSeparate
from stabledrl.estimators.block_elbo import BlockElbo
from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.exact import Exact
from stabledrl.estimators.mean_field import MeanField
from stabledrl.estimators.trajectory import Trajectory
from stabledrl.functional.enumeration import order_averaged_elbo, random_order_log_likelihood
from stabledrl.functional.masking import block_random
from stabledrl.functional.strata import independent_levels, shared_levels, stratified_levels
from tests.block_policies import block_policy, written
from tests.estimators.outcomes import generator, scripted, total_weight
from tests.policies import END, MASK, tiny_policy

LEVELS = [independent_levels, shared_levels, stratified_levels]
PROMPTS = [[6, 10, 23], [7, 11, 4, 9]]
IDS = torch.tensor([[5, 9, 12, 4, 8, 13], [8, 6, 5, 9, END, 7]])


@torch.no_grad()
@pytest.mark.parametrize("target", [order_averaged_elbo, random_order_log_likelihood])
def test_exact_is_the_sum_over_blocks(target):
    policy = block_policy(3)
    sequences = written(policy, PROMPTS, IDS)
    # the prompts of 3 and 4 tokens fill 1 and 1⅓ blocks of 3: counted tokens 3+3 and 2+3 of 5
    assert sequences.completion_block.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 2]]
    estimator = Exact(target=target)
    value = estimator(policy, sequences, estimator.draw(sequences, 1, generator()))
    policy.attention = BlockSeparate()
    for row, places in enumerate([[[0, 1, 2], [3, 4, 5]], [[0, 1], [2, 3, 4]]]):
        total = 0.0
        for place in places:
            table = torch.zeros(2 ** len(place), len(place))
            for number in range(2 ** len(place)):
                mask = torch.zeros(1, 6, dtype=torch.bool)
                for bit, token in enumerate(place):
                    mask[0, token] = bool(number >> bit & 1)
                one = sequences[row : row + 1]
                table[number] = policy.log_likelihood(one, mask)[0, place]
            total += float(target(table))
        assert float(value.value[row]) == pytest.approx(total, rel=1e-5)


@torch.no_grad()
def test_the_expectation_is_the_sum_of_the_blocks_elbos(monkeypatch):
    policy = block_policy(3)
    sequences = written(policy, PROMPTS, IDS)
    # all orders of three tokens, by all numbers of masked ones: u on a grid of six makes m uniform
    # on {1, 2, 3} and on {1, 2}
    orders = list(itertools.permutations([0.1, 0.5, 0.9]))
    grid = [(2 * i + 1) / 12 for i in range(6)]
    noise = torch.tensor([order for order in orders for _ in grid])
    levels = torch.tensor(grid).repeat(len(orders))

    def given(draws: int, samples: int, blocks: int, _: torch.Generator) -> Tensor:
        return levels[:, None, None].expand(draws, samples, blocks)

    # every block of three columns of the second row begins elsewhere than in the first
    shifts = [[0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 2, 0]]
    scripted(monkeypatch, torch.stack([noise[:, shift] for shift in shifts], 1))
    estimator = BlockElbo(draws=36, levels=given)
    corruption = estimator.draw(sequences, 1, generator())
    assert torch.equal(corruption.mask | sequences.completion_mask, torch.ones(36, 2, 6) > 0)
    value = estimator(policy, sequences, corruption).value
    expected = Exact()(policy, sequences, corruption).value
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("levels", LEVELS)
def test_with_blocks_of_one_token_it_is_the_left_to_right_likelihood(levels):
    policy = block_policy(1)
    sequences, estimator = written(policy, PROMPTS, IDS), BlockElbo(levels=levels)
    values = []
    for seed in (0, 1):
        corruption = estimator.draw(sequences, 1, generator(seed))
        values.append(estimator(policy, sequences, corruption).value)
    assert torch.equal(*values)  # no noise at all
    for row, prompt in enumerate(PROMPTS):
        total = 0.0
        for place in range(int(sequences.length[row])):
            text = torch.tensor([prompt + IDS[row, :place].tolist() + [MASK]])
            causal = torch.ones(1, 1, text.shape[1], text.shape[1], dtype=torch.bool).tril()
            logits = policy.backbone(input_ids=text, attention_mask=causal).logits[0, -1]
            total += float(logits.log_softmax(-1)[IDS[row, place]])
        assert float(values[0][row]) == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("draws", [1, 3])
def test_weights_and_their_numbers(levels, draws):
    sequences = written(block_policy(3), PROMPTS, IDS)
    corruption = BlockElbo(draws, levels).draw(sequences, 1, generator())
    # exact for a constant log p: n_b from every block
    torch.testing.assert_close(total_weight(corruption), sequences.length.float())
    hidden = corruption.mask & sequences.completion_mask
    for places in ([0, 1, 2], [3, 4, 5]):
        assert (hidden[:, 0, places].sum(-1) > 0).all()
    assert not corruption.weight[:, ~sequences.completion_mask].any()


def test_strata_are_spread_over_draws_and_blocks():
    levels = stratified_levels(3, 5, 2, generator()).double()
    for sample in range(5):
        every = levels[:, sample].flatten().sort().values
        torch.testing.assert_close(every.diff(), torch.full((5,), 1 / 6).double())
        for block in range(2):
            of_block = levels[:, sample, block].sort().values
            torch.testing.assert_close(of_block.diff(), torch.full((2,), 1 / 3).double())
    assert torch.equal(*shared_levels(2, 3, 2, generator()).unbind(-1))
    assert len(independent_levels(2, 3, 4, generator()).unique()) == 24


def test_the_elbo_of_a_model_with_blocks_is_drawn_block_by_block():
    sequences = written(block_policy(3), PROMPTS, IDS)
    uniform = BlockElbo(draws=2, levels=independent_levels)
    ours, theirs = (it.draw(sequences, 1, generator()) for it in (Elbo(draws=2), uniform))
    assert torch.equal(ours.mask, theirs.mask)
    assert torch.equal(ours.weight, theirs.weight)
    with pytest.raises(ValueError, match="takes masking=uniform"):
        Elbo(masking=partial(block_random, block_length=2)).draw(sequences, 1, generator())


@torch.no_grad()
def test_the_mean_field_of_a_block_stands_behind_clean_ones():
    policy = block_policy(3)
    sequences, estimator = written(policy, PROMPTS, IDS), MeanField(0.0)
    value = estimator(policy, sequences, estimator.draw(sequences, 1, generator())).token_value
    policy.attention = BlockSeparate()
    everything = torch.ones_like(IDS) > 0
    expected = policy.log_likelihood(sequences, everything)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_model_without_blocks_has_one():
    policy = tiny_policy()
    sequences = written(policy, PROMPTS, IDS)
    assert sequences.block is None
    uniform = BlockElbo(draws=2, levels=independent_levels)
    ours, theirs = (it.draw(sequences, 1, generator()) for it in (uniform, Elbo(draws=2)))
    assert torch.equal(ours.mask, theirs.mask)
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_a_decoding_is_replayed_block_by_block():
    policy = block_policy(3)
    step = torch.tensor([[0, 1, 1, 3, 2, 4], [1, 0, 4, 2, 3, 9]])
    corruption = Trajectory().draw(written(policy, PROMPTS, IDS, step), 1, generator())
    # row 0: blocks 0 to 2 and 3 to 5 by passes {0}, {1} and {2}, {3}, {4}: copy t has group t
    # of both. Row 1: blocks 0 to 1, 2 to 4 (with the end token), 5
    mask = [
        [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1]],
        [[0, 1, 1, 1, 0, 1], [1, 0, 1, 0, 1]],
        [[0, 0, 0, 0, 0, 1], [0, 0, 1, 0, 0]],
    ]
    weight = [
        [[1, 0, 0, 0, 1, 0], [0, 1, 0, 1, 0]],
        [[0, 1, 1, 1, 0, 0], [1, 0, 0, 0, 1]],
        [[0, 0, 0, 0, 0, 1], [0, 0, 1, 0, 0]],
    ]
    for copy in range(3):
        assert corruption.mask[copy, 0].tolist() == [bool(it) for it in mask[copy][0]]
        assert corruption.mask[copy, 1, :5].tolist() == [bool(it) for it in mask[copy][1]]
        assert corruption.weight[copy, 0].tolist() == weight[copy][0]
        assert corruption.weight[copy, 1].tolist() == [*weight[copy][1], 0]


def test_drawn_groups_weigh_their_block():
    policy = block_policy(3)
    step = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 0, 4, 2, 3, 9]])
    sequences = written(policy, PROMPTS, IDS, step)
    weights = [
        Trajectory(draws=1).draw(sequences, 1, generator(seed)).weight for seed in range(400)
    ]
    for weight in weights:
        # of every block one group, times their number
        assert weight.sum(0)[0].view(2, 3).sum(1).tolist() == [3, 3]
        assert weight.sum((0, 2)).tolist() == [6, 5]
    mean = torch.stack(weights).sum(1).mean(0)
    assert (mean[sequences.completion_mask] - 1).abs().max() < 0.3  # 1 ± √(2/400)·4
