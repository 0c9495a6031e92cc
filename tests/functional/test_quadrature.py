"""Gauss–Legendre nodes on [0, 1], and what is hidden at each."""

import math

import numpy as np
import pytest
import torch

from stabledrl.functional.quadrature import (
    gauss_legendre,
    node_rate,
    quadrature_weight,
    realised_rate,
)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 8, 16])
def test_nodes_are_those_of_numpy_and_integrate_polynomials(nodes):
    position, weight = gauss_legendre(nodes)
    expected, weights = np.polynomial.legendre.leggauss(nodes)
    np.testing.assert_allclose(position.numpy(), (1 + expected) / 2, atol=1e-14)
    np.testing.assert_allclose(weight.numpy(), weights / 2, atol=1e-14)
    for degree in range(2 * nodes):  # ∫₀¹ t^d dt = 1/(d+1)
        integral = float((weight * position**degree).sum())
        assert integral == pytest.approx(1 / (degree + 1), rel=1e-12)
    if nodes % 2:
        assert position[nodes // 2] == 0.5  # exactly: ⌊L/2⌋ tokens


def test_two_nodes_by_hand():
    position, weight = gauss_legendre(2)
    assert position.tolist() == pytest.approx([0.5 - 1 / math.sqrt(12), 0.5 + 1 / math.sqrt(12)])
    assert weight.tolist() == pytest.approx([0.5, 0.5])


def test_divisions_by_hand():
    node, length = torch.tensor([0.2, 0.7], dtype=torch.float64), torch.tensor([10, 3])
    count, rate = realised_rate(node, length)
    assert count.tolist() == [[2, 1], [7, 2]]  # ⌊0.6⌋ = 0 is raised to 1
    assert rate.tolist() == [[0.2, pytest.approx(1 / 3)], [0.7, pytest.approx(2 / 3)]]
    count, rate = node_rate(node, length)
    assert count.tolist() == [[2, 0], [7, 2]]
    assert rate.tolist() == [[0.2, 0.2], [0.7, 0.7]]


def test_weights_by_hand():
    scored = torch.tensor([[[True, False]], [[True, True]]])
    weight = quadrature_weight(
        scored,
        torch.tensor([0.5, 0.25], dtype=torch.float64),
        torch.tensor([[0.5], [1.0]], dtype=torch.float64),
    )
    assert weight.tolist() == [[[1.0, 0.0]], [[0.25, 0.25]]]
    assert weight.dtype == torch.float32
