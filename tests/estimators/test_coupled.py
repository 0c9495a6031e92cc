"""Masks with their complements: unbiased, spread over a group, and the published numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from stabledrl.estimators.coupled import Coupled
from stabledrl.functional.enumeration import order_averaged_elbo
from stabledrl.functional.strata import both_sides, coupled_counts, mean_weight
from stabledrl.types import Corruption, Sequences
from tests.estimators.outcomes import (
    Recorded,
    generator,
    orders,
    random_table,
    scripted,
    sequences,
)
from tests.published import published_sequences

GOLDEN = load_file(Path(__file__).parents[1] / "golden/espo.safetensors")


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("group_size", [1, 2, 3])
def test_the_expectation_of_every_row_is_the_order_averaged_elbo(
    monkeypatch: pytest.MonkeyPatch, length: int, group_size: int
) -> None:
    # k with 1/(L+1), every order of the tokens; all rows of a group have the same k
    noise = orders(length, 4)
    cells = ((torch.arange(length + 1) + 0.5) / (length + 1)).repeat_interleave(len(noise))
    samples = sequences(length, 4, len(cells) * group_size)
    of_rows = noise.repeat(length + 1, 1).repeat_interleave(group_size, 0)
    scripted(monkeypatch, cells[None], of_rows[None])
    estimator, model = Coupled(), random_table(length)
    corruption = estimator.draw(samples, group_size, generator())
    value = estimator(model, samples, corruption).value.view(-1, group_size)
    expected = order_averaged_elbo(model.table).expand(group_size)
    torch.testing.assert_close(value.mean(0), expected, rtol=1e-6, atol=0)  # float32 weights


@pytest.mark.parametrize("draws", [1, 3])
def test_every_counted_token_is_scored_once_per_pair(draws: int) -> None:
    samples = sequences(5, 7, 12)
    corruption = Coupled(draws=draws).draw(samples, 4, generator())
    assert corruption.mask[:, :, 5:].all()
    assert (corruption.weight[~corruption.mask] == 0).all()
    assert (corruption.weight[:, :, 5:] == 0).all()
    for mask, complement in zip(*(corruption.weight > 0).chunk(2), strict=True):
        assert torch.equal(mask ^ complement, samples.completion_mask)
    # a side of n tokens has (L+1)/(2K), whatever n > 0
    sums = corruption.weight.sum(-1)
    assert (sums[corruption.weight.any(-1)] - 6 / (2 * draws)).abs().max() < 1e-6


def test_a_group_as_large_as_the_numbers_has_each_of_them() -> None:
    # two groups of L + 1 = 6 rows
    corruption = Coupled().draw(sequences(5, 6, 12), 6, generator())
    hidden = (corruption.mask[0, :, :5]).sum(-1).view(2, 6)
    assert hidden.sort(-1).values.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_counts_by_hand_for_rows_of_different_lengths() -> None:
    # B = 4, u = 0.5. L = 4: k = ⌊2.5⌋ = 2 and b·5/4 = 0; L = 16: k = ⌊8.5⌋ = 8, plus ⌊17/4⌋ = 4;
    # L = 1: k = 1, plus ⌊2·2/4⌋ = 1, mod 2; L = 0: always 0
    length, row = torch.tensor([4, 16, 1, 0]), torch.arange(4)
    assert coupled_counts(length, torch.full((1, 4), 0.5), row, 4).tolist() == [[2, 12, 0, 0]]


def test_both_sides_at_the_ends() -> None:
    # l = 0 and l = L: one sum is empty, the other has (L+1)/(2·L) per token
    counted = torch.tensor([[True, True, True, False]])
    for hidden in (torch.zeros(1, 1, 4) > 0, torch.ones(1, 1, 4) > 0):
        weight = mean_weight(both_sides(hidden, counted), torch.tensor([4]))
        rows = weight[:, 0].tolist()
        assert sorted(rows) == [[0, 0, 0, 0], pytest.approx([2 / 3, 2 / 3, 2 / 3, 0])]


def test_parts_of_a_phase_are_scored_as_in_the_whole() -> None:
    samples, estimator, model = sequences(3, 4, 8), Coupled(draws=2), random_table(3)
    corruption = estimator.draw(samples, 4, generator())
    whole = estimator(model, samples, corruption).value
    part = estimator(model, samples[3:6], corruption[3:6]).value
    assert torch.equal(part, whole[3:6])


@pytest.mark.parametrize("model", ["llada", "dream"])
def test_published_values_from_the_published_masks(model: str) -> None:
    # ESPO counts all 16 positions, those after the end token too; we do not (method.md §3), so all
    # of them count here.
    samples = published_sequences(GOLDEN["input_ids"], every_token=True)
    counted = samples.completion_mask
    for iteration in range(2):
        hidden = GOLDEN[f"{model}/perturbed"][iteration, ..., 8:] == 95  # two masks
        scored = both_sides(hidden, counted)
        weight = mean_weight(scored, torch.full((4,), 17))
        values = [GOLDEN[f"{model}/token_logp_{side}"] for side in ("masked", "complement")]
        corruption = Corruption(scored, weight)
        scorer = Recorded(corruption, torch.cat([side[iteration] for side in values]))
        value = Coupled(draws=2)(scorer, samples, corruption).value
        expected = GOLDEN[f"{model}/elbo_new"][:, iteration]
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


def test_published_numbers_are_rounded_half_to_even_ours_down() -> None:
    # l of the four rows, L = 16: k + b·17/4 = k + (0, 4.25, 8.5, 12.75), mod 17. We follow the
    # mathematics: rounding down leaves every l uniform on {0…16}, rounding half to even does not.
    length, row = torch.full((4,), 16), torch.arange(4)
    recorded = (GOLDEN["llada/perturbed"][..., 8:] == 95).sum(-1).view(-1, 4)
    for counts in recorded:
        first = int(counts[0])
        half_to_even = (first + row * 17 / 4).round().long() % 17
        assert torch.equal(half_to_even, counts)
        ours = coupled_counts(length, torch.full((1, 4), (first + 0.5) / 17), row, 4)[0]
        assert torch.equal(ours, (first + torch.tensor([0, 4, 8, 12])) % 17)
    every = torch.arange(17)
    uniform = ((every + 0.5) / 17)[:, None, None]
    ours = torch.stack([coupled_counts(length, u.expand(1, 4), row, 4)[0] for u in uniform])
    assert (ours.sort(0).values == every[:, None]).all()
    published = (every[:, None] + row * 17 / 4).round().long() % 17
    assert len(published[:, 2].unique()) == 9  # of 17 numbers


def test_no_pairs_are_refused() -> None:
    with pytest.raises(ValidationError):
        Coupled(draws=0)


def test_a_last_group_may_be_smaller() -> None:
    part: Sequences = sequences(3, 4, 5)
    assert Coupled().draw(part, 3, generator()).mask.shape == (2, 5, 4)
