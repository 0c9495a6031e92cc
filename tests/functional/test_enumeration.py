"""Exact likelihoods against sums over all orders."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from stabledrl.functional.enumeration import (
    all_subsets,
    order_averaged_elbo,
    random_order_log_likelihood,
)


def over_orders(table: Tensor) -> list[float]:
    """Σ_t log p(token revealed at t | those hidden then), for each of the L! orders."""
    length = table.shape[1]
    sums = []
    for order in itertools.permutations(range(length)):
        hidden, total = 2**length - 1, 0.0
        for token in order:
            total += float(table[hidden, token])
            hidden -= 1 << token
        sums.append(total)
    return sums


def test_subsets_are_numbered_by_their_bits() -> None:
    assert all_subsets(2).int().tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert all_subsets(0).shape == (1, 0)


@pytest.mark.parametrize("length", [1, 2, 4, 5])
def test_both_targets_are_what_a_sum_over_all_orders_gives(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    table = -3 * torch.rand(2**length, length, dtype=torch.float64, generator=generator)
    orders = over_orders(table)
    elbo, likelihood = order_averaged_elbo(table), random_order_log_likelihood(table)
    assert float(elbo) == pytest.approx(sum(orders) / len(orders), rel=1e-12)
    mean = sum(map(math.exp, orders)) / len(orders)
    assert float(likelihood) == pytest.approx(math.log(mean), rel=1e-12)
    assert elbo <= likelihood + 1e-12  # Jensen; equal for one token


def test_two_tokens_by_hand() -> None:
    # S = {0}: log ½; {1}: log ¼; {0,1}: log ⅛ and log 1/16. Orders: token 0 first, then 1:
    # log ⅛ + log ¼ = log 1/32; the other way log 1/16 + log ½ = log 1/32. So both are log 1/32.
    table = torch.tensor([[9, 9], [0.5, 9], [9, 0.25], [0.125, 0.0625]]).log()
    assert float(order_averaged_elbo(table)) == pytest.approx(-math.log(32))
    assert float(random_order_log_likelihood(table)) == pytest.approx(-math.log(32))
    # entries outside S (the 9s) are ignored
    table[0] = table[1, 1] = table[2, 0] = 77.0
    assert float(order_averaged_elbo(table)) == pytest.approx(-math.log(32))


def test_an_empty_completion_has_likelihood_one() -> None:
    assert float(order_averaged_elbo(torch.zeros(1, 0))) == 0
    assert float(random_order_log_likelihood(torch.zeros(1, 0))) == 0


def test_gradients_are_those_of_finite_differences() -> None:
    table = -torch.rand(8, 3, dtype=torch.float64)
    table.requires_grad_()
    torch.autograd.gradcheck(order_averaged_elbo, (table,))
    torch.autograd.gradcheck(random_order_log_likelihood, (table,))
