"""Token values from a mask and its complement: by hand, in expectation, and as published."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from stabledrl.estimators.coupled_token import CoupledToken, three_inputs
from tests.estimators.outcomes import (
    Recorded,
    generator,
    random_table,
    scripted,
    sequences,
)
from tests.published import published_sequences

GOLDEN = load_file(Path(__file__).parents[1] / "golden/coupled_grpo.safetensors")


def test_weights_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # t = 0.2 + 0.6·½ = 0.5; noise below it is the first side
    scripted(monkeypatch, torch.tensor(0.5), torch.tensor([[0.1, 0.9, 0.4, 0.0]]))
    corruption = CoupledToken().draw(sequences(3, 4, 1), 1, generator())
    assert corruption.mask[:, 0].int().tolist() == [[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 0, 1]]
    halves, firsts, seconds = corruption.weight[:, 0].tolist()
    assert halves == [0.5, 0.5, 0.5, 0]
    assert firsts == pytest.approx([1, 0, 1, 0])  # ½·1/t
    assert seconds == pytest.approx([0, 1, 0, 0])  # ½·1/(1−t)


def test_every_sample_has_the_same_rate_within_its_bounds() -> None:
    for seed in range(50):
        corruption = CoupledToken().draw(sequences(9, 12, 4), 4, generator(seed))
        _, first, second = (weight[weight > 0].unique() for weight in corruption.weight)
        assert len(first) == len(second) == 1
        rate = 0.5 / float(first)
        assert 0.2 <= rate <= 0.8
        assert 0.5 / float(second) == pytest.approx(1 - rate)
        sides = (corruption.weight[1] > 0) ^ (corruption.weight[2] > 0)
        assert torch.equal(sides, sequences(9, 12, 4).completion_mask)


def test_the_expectation_of_a_token_value_by_enumeration() -> None:
    # E[w·log p on the own side] = E[log p_k(S) | k ∈ S] + E[log p_k(S) | k ∈ S] at rate 1 − t:
    # the 1/t cancels the chance of being there, so a constant log p counts 3/2.
    length, rate, model = 3, 0.3, random_table(3)
    subsets = torch.tensor(list(itertools.product([False, True], repeat=length)))
    probability = torch.where(subsets, rate, 1 - rate).prod(-1).double()
    samples = sequences(length, length, len(subsets))
    likelihood = CoupledToken()(
        model, samples, three_inputs(subsets, samples.completion_mask, rate)
    )
    assert likelihood.token_value is not None
    found = (probability[:, None] * likelihood.token_value).sum(0)
    for k in range(length):
        own = {}
        for chance in (rate, 1 - rate):
            total = 0.0
            for others in itertools.product([0, 1], repeat=length - 1):
                hidden = [*others[:k], 1, *others[k:]]
                row = sum(bit << place for place, bit in enumerate(hidden))
                weight = chance ** sum(others) * (1 - chance) ** (length - 1 - sum(others))
                total += weight * float(model.table[row, k])
            own[chance] = total
        expected = 0.5 * (float(model.table[-1, k]) + sum(own.values()))
        assert float(found[k]) == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(likelihood.value, likelihood.token_value.sum(-1))
    assert torch.equal(likelihood.value, likelihood.score)


@pytest.mark.parametrize("model", ["dream", "llada_noshift"])
def test_published_token_values_from_the_published_masks(model: str) -> None:
    # the code's w: 1/t for tokens hidden in the second input, 1/(1−t) in the third; all positions
    samples = published_sequences(GOLDEN["input_ids"], every_token=True)
    counted = samples.completion_mask
    for iteration in range(2):
        hidden = GOLDEN[f"{model}/part_mask"][iteration, :, 8:] > 0
        _, first, second = GOLDEN[f"{model}/weights"][iteration].tolist()
        assert 1 / first + 1 / second == pytest.approx(1, abs=1e-6)
        corruption = three_inputs(hidden, counted, 1 / first)
        perturbed = GOLDEN[f"{model}/perturbed"][iteration, ..., 8:] == 95
        assert torch.equal(corruption.mask, perturbed)
        recorded = Recorded(corruption, GOLDEN[f"{model}/token_logp_three_inputs"][iteration])
        value = CoupledToken()(recorded, samples, corruption).token_value
        expected = GOLDEN[f"{model}/logp_new"][:, iteration]
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "settings", [{"lowest_rate": 0.0}, {"highest_rate": 1.0}, {"lowest_rate": 0.9}], ids=str
)
def test_bad_rates_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        CoupledToken(**settings)
    assert CoupledToken(lowest_rate=0.5, highest_rate=0.5).lowest_rate == 0.5
