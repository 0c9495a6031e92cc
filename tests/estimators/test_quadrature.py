"""The ELBO by Gauss–Legendre nodes: by enumeration, and the numbers of GDPO's code."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from stabledrl.estimators.quadrature import Quadrature
from stabledrl.functional.enumeration import order_averaged_elbo
from stabledrl.functional.quadrature import (
    gauss_legendre,
    node_rate,
    quadrature_weight,
    realised_rate,
)
from stabledrl.types import Corruption
from tests.estimators.outcomes import (
    Recorded,
    Table,
    generator,
    orders,
    random_table,
    scripted,
    sequences,
    total_weight,
)
from tests.published import published_sequences

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = load_file(FOLDER / "gdpo.safetensors")
CASES = json.loads((FOLDER / "gdpo.json").read_text())["elbo_cases"]
LOW, HIGH = 0.5 - 1 / math.sqrt(12), 0.5 + 1 / math.sqrt(12)  # two nodes of weight ½ on [0, 1]


def mean_over_subsets(model: Table, size: int) -> float:
    """E of Σ_masked log p over the subsets of this size."""
    length = model.table.shape[1]
    sums = [
        sum(float(model.table[sum(1 << k for k in subset), k]) for k in subset)
        for subset in itertools.combinations(range(length), size)
    ]
    return sum(sums) / len(sums)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_the_expectation_by_hand(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    noise = orders(length, 6)
    samples = sequences(length, 6, len(noise))
    scripted(monkeypatch, noise.expand(2, -1, -1))
    estimator, model = Quadrature(), random_table(length)
    corruption = estimator.draw(samples, 1, generator())
    mean = float(estimator(model, samples, corruption).value.mean())
    counts = [max(1, math.floor(t * length)) for t in (LOW, HIGH)]
    expected = sum(0.5 * length / m * mean_over_subsets(model, m) for m in counts)
    assert mean == pytest.approx(expected, rel=1e-6)
    exact = float(order_averaged_elbo(model.table))
    if length == 1:
        assert mean == pytest.approx(exact, rel=1e-6)
    else:
        assert abs(mean - exact) > 1e-3  # the error of the quadrature remains


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("length", [1, 4, 16])
def test_a_constant_log_probability_counts_once_per_token(
    nodes: int, draws: int, length: int
) -> None:
    corruption = Quadrature(nodes=nodes, draws=draws).draw(sequences(length, 20, 3), 3, generator())
    torch.testing.assert_close(total_weight(corruption), torch.full((3,), float(length)))


def test_how_many_are_hidden_is_not_random() -> None:
    samples = sequences(16, 20, 30)
    corruption = Quadrature(draws=2).draw(samples, 3, generator())
    hidden = (corruption.mask & samples.completion_mask).sum(-1)
    assert hidden.T.tolist() == [[3, 3, 12, 12]] * 30  # ⌊0.2113·16⌋, ⌊0.7887·16⌋
    assert len(corruption.mask[0].unique(dim=0)) > 20  # which ones is


def test_the_division_by_the_node_is_biased() -> None:
    # L = 16: ½·(3/0.2113 + 12/0.7887) = 14.7 instead of 16; L = 2: nothing at the first node
    estimator = Quadrature(divide_by=node_rate)
    found = float(total_weight(estimator.draw(sequences(16, 16, 1), 1, generator())))
    assert found == pytest.approx(0.5 * (3 / LOW + 12 / HIGH), rel=1e-6)
    short = estimator.draw(sequences(2, 16, 1), 1, generator())
    assert (short.mask[0, 0, :2] == 0).all()
    assert float(total_weight(short)) == pytest.approx(0.5 / HIGH, rel=1e-6)


def test_a_completion_without_tokens_is_zero() -> None:
    for divide_by in (realised_rate, node_rate):
        corruption = Quadrature(divide_by=divide_by).draw(sequences(0, 4, 2), 1, generator())
        assert (corruption.weight == 0).all()


@pytest.mark.parametrize("case", CASES, ids=[case["key"] for case in CASES])
def test_published_values_from_the_published_masks(case: dict[str, list[float]]) -> None:
    # GDPO's code hides ⌊t·L⌋ of all 16 positions and divides by t (`node_rate`), its nodes in
    # another order; its published value is the mean over `batches` and masks per node.
    key = case["key"]
    node, node_weight = gauss_legendre(len(case["nodes01"]))
    order = torch.tensor(case["nodes01"], dtype=torch.float64).argsort()
    torch.testing.assert_close(torch.tensor(case["nodes01"], dtype=torch.float64)[order], node)
    samples = published_sequences(GOLDEN["input_ids"], every_token=True)
    count, rate = node_rate(node, samples.length)
    assert count[:, 0].tolist() == [case["masked_per_node"][k] for k in order]
    hidden = GOLDEN[f"{key}/perturbed"][:, order, ..., 8:] == 95  # [batch, node, sample, mc, …]
    values = GOLDEN[f"{key}/token_logp"][:, order]
    batches, _, _, masks, _ = hidden.shape
    draws = torch.arange(len(node)).repeat(batches).repeat_interleave(masks)
    scored, logp = (it.transpose(2, 3).reshape(-1, 4, 16) for it in (hidden, values))
    weight = quadrature_weight(scored, node_weight[draws] / (batches * masks), rate[draws])
    corruption = Corruption(scored, weight)
    value = Quadrature()(Recorded(corruption, logp), samples, corruption).value
    torch.testing.assert_close(value, GOLDEN[f"{key}/elbo"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("settings", [{"nodes": 0}, {"draws": 0}, {"node": 2}], ids=str)
def test_bad_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Quadrature(**settings)
