"""The replayed decoding against the sampler's own record, and against states by hand."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from stabledrl.estimators.trajectory import Trajectory
from stabledrl.functional.decoding import random_order, token_probability
from stabledrl.functional.masking import counted_tokens
from stabledrl.policy import Policy
from stabledrl.samplers.semi_autoregressive import Confidence, SemiAutoregressive
from stabledrl.types import Completions, Sequences
from tests.policies import END, MASK, VOCABULARY, fake_policy, left_padded

PROMPTS = [[6, 10, 23], [7, 11], [9, 4, 8, 20]] * 4
# completion [5, 9, 12, END, 8], committed in passes 4, 0, 4, 7 and, not counted, 2
STEP = torch.tensor([[4, 0, 4, 7, 2]])


def by_hand(step: Tensor = STEP) -> Sequences:
    prompt_ids, prompt_mask = left_padded([[6, 10]])
    ids = torch.tensor([[5, 9, 12, END, 8]])
    return Sequences(prompt_ids, prompt_mask, ids, counted_tokens(ids, (END,)), step)


def policy() -> Policy:
    """Predictions depend on everything that is visible; ends are likely, mask tokens never."""
    table = torch.randn(VOCABULARY, VOCABULARY, generator=generator())
    table[:, MASK] = -1e6

    def logits(ids: Tensor) -> Tensor:
        position = torch.arange(1, ids.shape[1] + 1)[:, None]
        score = table[ids] + (table[ids] * position.sin()).sum(1, keepdim=True)
        score[..., END] += 3  # nats
        return score

    return fake_policy(logits)


def decoded(
    threshold: float | None = None, confidence: Confidence = random_order
) -> tuple[Sequences, Completions]:
    """Completions of the tiny policy, in two blocks, with what the sampler says about them."""
    sampler = SemiAutoregressive(8, 4, 8, 1.0, confidence=confidence, threshold=threshold)
    prompt_ids, prompt_mask = left_padded(PROMPTS)
    uniform = sampler.draw(len(PROMPTS), torch.Generator().manual_seed(3))
    completions = sampler(policy(), prompt_ids, prompt_mask, uniform)
    counted = counted_tokens(completions.ids, (END,))
    sequences = Sequences(prompt_ids, prompt_mask, completions.ids, counted, completions.step)
    return sequences, completions


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def passes(sequences: Sequences) -> list[int]:
    """Number of passes of every completion that committed counted tokens."""
    rows = zip(sequences.step, sequences.completion_mask, strict=True)
    return [len(set(step[counted].tolist())) for step, counted in rows]


@pytest.mark.parametrize(
    ("threshold", "confidence"), [(None, random_order), (0.5, token_probability)]
)
@torch.no_grad()
def test_every_token_has_the_probability_it_was_sampled_with(
    threshold: float | None, confidence: Confidence
) -> None:
    sequences, completions = decoded(threshold, confidence)
    estimator = Trajectory()
    likelihood = estimator(policy(), sequences, estimator.draw(sequences, 1, generator()))
    counted = sequences.completion_mask
    assert (completions.step == 8).any()  # some end in the first block
    assert (completions.step == 7).any()  # some do not
    earlier = completions.step < torch.where(counted, completions.step, -1).amax(-1, keepdim=True)
    assert (earlier & ~counted).any()  # and the sampler saw tokens that do not count
    expected = torch.where(counted, completions.log_probability, 0)
    assert likelihood.token_value is not None
    torch.testing.assert_close(likelihood.token_value, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(likelihood.value, expected.sum(-1), rtol=0, atol=1e-4)


def test_states_are_those_of_the_decoding() -> None:
    corruption = Trajectory().draw(by_hand(), 1, generator())
    # passes 0, 4, 7 are groups 0, 1, 2; the token after the end was there from pass 2 on
    states = [[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 1, 0]]
    scored = [[0, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 0, 0, 1, 0]]
    assert corruption.mask[:, 0].int().tolist() == states
    assert corruption.weight[:, 0].int().tolist() == scored


def test_shrink_scores_neighbouring_passes_from_the_state_before_the_first() -> None:
    corruption = Trajectory(shrink=2).draw(by_hand(), 1, generator())
    assert corruption.mask[:, 0].int().tolist() == [[1, 1, 1, 1, 1], [0, 0, 0, 1, 0]]
    assert corruption.weight[:, 0].int().tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 0]]


def test_one_group_is_the_mean_field() -> None:
    corruption = Trajectory(shrink=8).draw(by_hand(), 1, generator())
    assert corruption.mask.int().tolist() == [[[1, 1, 1, 1, 1]]]
    assert corruption.weight.int().tolist() == [[[1, 1, 1, 1, 0]]]


@pytest.mark.parametrize("draws", [1, 2, 3, 5])
def test_drawn_groups_weigh_as_much_as_all_of_them_in_the_mean(draws: int) -> None:
    copies = torch.zeros(6000, dtype=torch.long)
    everything = Trajectory().draw(by_hand(), 1, generator())
    corruption = Trajectory(draws=draws).draw(by_hand()[copies], 1, generator())
    taken = min(draws, 3)
    assert corruption.weight.any(-1).shape == (taken, 6000)
    assert corruption.weight.any(-1).all()
    # the copy of a group is masked as that group is
    same = ((corruption.weight[:, None] > 0) == (everything.weight > 0)).all(-1).long().argmax(1)
    assert torch.equal(corruption.mask, everything.mask[:, 0][same])
    kept = corruption.weight[corruption.weight > 0]
    assert torch.equal(kept, torch.full_like(kept, 3 / taken))
    # a group is in with probability p = taken/3: five standard errors of 6000 weights
    error = 5 * math.sqrt((3 / taken - 1) / 6000) + 1e-6
    mean, counted = corruption.weight.sum(0).mean(0), everything.weight[:, 0].sum(0)
    torch.testing.assert_close(mean, counted, rtol=0, atol=error)


@torch.no_grad()
def test_groups_that_are_not_drawn_cost_no_forward_pass() -> None:
    class Counting:
        rows = 0

        def log_likelihood(
            self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
        ) -> Tensor:
            self.rows += int((mask & sequences.completion_mask).any(-1).sum())
            return torch.zeros(mask.shape)

    sequences, _ = decoded()
    groups = passes(sequences)
    for draws in (1, 2):
        scorer, estimator = Counting(), Trajectory(draws=draws)
        estimator(scorer, sequences, estimator.draw(sequences, 1, generator()))
        assert scorer.rows == sum(min(draws, number) for number in groups)
    scorer, estimator = Counting(), Trajectory()
    estimator(scorer, sequences, estimator.draw(sequences, 1, generator()))
    assert scorer.rows == sum(groups)


def test_what_was_drawn_for_a_sample_does_not_depend_on_the_others() -> None:
    sequences, _ = decoded()
    number = torch.tensor(passes(sequences))
    sequences = sequences[number.argsort()]  # few passes first
    estimator = Trajectory(draws=2)
    whole = estimator.draw(sequences, 1, generator())
    first = int((number < number.max()).sum())
    part = estimator.draw(sequences[:first], 1, generator()).weight
    assert 0 < first < len(number)
    assert torch.equal(whole.weight[:, :first], part)
    assert torch.equal(whole.weight, estimator.draw(sequences, 1, generator()).weight)
    assert not torch.equal(whole.weight, estimator.draw(sequences, 1, generator(1)).weight)


def test_solutions_were_not_decoded() -> None:
    sequences = by_hand()
    plain = Sequences(
        sequences.prompt_ids,
        sequences.prompt_mask,
        sequences.completion_ids,
        sequences.completion_mask,
    )
    with pytest.raises(ValueError, match="not decoded"):
        Trajectory().draw(plain, 1, generator())


@pytest.mark.parametrize("wrong", [{"shrink": 0}, {"draws": 0}, {"draw": 1}])
def test_wrong_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Trajectory(**wrong)
