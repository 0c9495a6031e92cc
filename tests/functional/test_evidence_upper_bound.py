"""SPG's upper bound by hand, by autograd, and against enumerated likelihoods: where it is one."""

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
from stabledrl.functional.evidence_upper_bound import evidence_upper_bound

NAN = float("nan")


def test_a_small_case_by_hand() -> None:
    # L = 4 of 5 positions, β = 2. Draw 1 scores tokens 0 and 1 (t = 2/4) with p = ½ and ¼, draw 2
    # scores token 1 (t = 1/4) with p = ½.
    #   token 0: mean(½²/½, 0) = ¼          token 1: mean(¼²/½, ½²/¼) = ½(1/8 + 1) = 9/16
    #   EUBO̅ = ½·mean(log ¼, log 9/16) = ¼·log 9/64 = ½·log 3/8; tokens 2 and 3 are left out
    # The second sample has nothing scored, the third one draw of all of its L = 1: log p = log ¼.
    logp = torch.full((2, 3, 5), NAN, dtype=torch.float64)
    logp[0, 0, :2] = torch.tensor([0.5, 0.25]).log()
    logp[1, 0, 1] = torch.tensor(0.5).log()
    logp[:, 2, 0] = torch.tensor(0.25).log()
    value = evidence_upper_bound(logp, ~logp.isnan(), torch.tensor([4, 4, 1]), beta=2.0)
    expected = [0.5 * math.log(3 / 8), 0, math.log(1 / 4)]
    assert value.tolist() == pytest.approx(expected, abs=1e-7)


def test_gradients_are_right_and_finite_where_nothing_is_scored() -> None:
    generator = torch.Generator().manual_seed(0)
    scored = torch.rand(3, 4, 6, generator=generator) < 0.4
    scored[:, 3] = False
    scored[..., 5] = False
    logp = -3 * torch.rand(3, 4, 6, generator=generator, dtype=torch.float64)
    length = torch.full((4,), 6)
    assert torch.autograd.gradcheck(
        lambda x: evidence_upper_bound(x, scored, length, 1.5), logp.requires_grad_()
    )
    # far-away probabilities and rubbish that is not scored
    logp = torch.where(scored, 1000 * logp.detach(), NAN).requires_grad_()
    value = evidence_upper_bound(logp, scored, length, 1.5)
    (gradient,) = torch.autograd.grad(value.sum(), logp)
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    assert (gradient[~scored] == 0).all()
    # the bound moves one for one with all log-probabilities
    assert gradient.sum((0, 2)).tolist() == pytest.approx([1, 1, 1, 0])


@pytest.mark.parametrize("beta", [1.0, 1.5, 2.0])
def test_with_one_draw_it_is_the_lower_bound_and_a_constant(beta: float) -> None:
    # (1/β)·mean log(p^β/t) = mean log p − log(t)/β; L = 5, m = 2: t = 0.4
    logp = torch.tensor([[[-0.3, -9.0, -2.0, -9.0, -9.0]]])
    scored = torch.tensor([[[True, False, True, False, False]]])
    value = evidence_upper_bound(logp, scored, torch.tensor([5]), beta)
    assert float(value) == pytest.approx((-0.3 - 2.0) / 2 - math.log(0.4) / beta)


def test_two_draws_can_give_less_than_the_lower_bound() -> None:
    # All p = 1, so the lower bound is 0. Draw 1 scores all of 4 tokens (t = 1), draw 2 one (t = ¼):
    # that token has log ½(1 + 4), the others log ½.
    scored = torch.tensor([[True, True, True, True], [True, False, False, False]])[:, None]
    value = evidence_upper_bound(torch.zeros(2, 1, 4), scored, torch.tensor([4]), 1.5)
    assert float(value) == pytest.approx((math.log(2.5) + 3 * math.log(0.5)) / 4 / 1.5)
    assert float(value) < 0


def test_its_mean_over_two_draws_by_enumeration() -> None:
    # L = 2, all p = 1, m uniform: masks 10, 01, 11, 11 are equally likely. Of the 16 pairs the four
    # of 10 and 01 alone give log 2 where they agree (2 pairs; t = ½) and 0 where not; the eight of
    # one of them and 11 give ½(log ½(2 + 1) + log ½) = ½·log ¾; the four of 11 twice give 0.
    masks = torch.tensor([[1, 0], [0, 1], [1, 1], [1, 1]]) > 0
    pairs = torch.tensor(list(itertools.product(range(4), repeat=2))).T
    value = evidence_upper_bound(
        torch.zeros(2, 16, 2), masks[pairs], torch.full((16,), 2), beta=1.5
    )
    expected = (2 * math.log(2) + 8 * math.log(0.75) / 2) / 16 / 1.5
    assert float(value.mean()) == pytest.approx(expected, abs=1e-7)


def in_the_limit(table: Tensor, beta: float) -> float:
    """L·EUBO̅ of infinitely many uniform draws: every subset as often as its law has it.

    m uniform on 1..L and the subset uniform: P(S) = 1/(L·C(L, |S|)).
    """
    length = table.shape[1]
    subsets = torch.arange(1, 2**length)
    size = all_subsets(length)[1:].sum(-1)
    common = math.lcm(*(math.comb(length, m) for m in range(1, length + 1)))
    times = torch.tensor([common // math.comb(length, int(m)) for m in size])
    often = subsets.repeat_interleave(times)
    scored = all_subsets(length)[often][:, None]
    value = evidence_upper_bound(table[often][:, None], scored, torch.tensor([length]), beta)
    return float(length * value)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_in_the_limit_it_bounds_the_elbo_and_for_large_beta_the_likelihood(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    above = 0.0
    for _ in range(40):
        table = -4 * torch.rand(2**length, length, generator=generator, dtype=torch.float64)
        elbo, log_pi = float(order_averaged_elbo(table)), float(random_order_log_likelihood(table))
        for beta in (1.0, 1.5, 3.0):
            assert in_the_limit(table, beta) >= elbo - 1e-9  # Jensen
        assert in_the_limit(table, float(length)) >= log_pi - 1e-9  # Hölder
        above = max(above, in_the_limit(table, 1.0) - elbo)
    assert (above > 1e-3) == (length > 1)  # one token: all of them are log p


def test_at_the_published_beta_it_does_not_bound_every_likelihood() -> None:
    # L = 2 and a model that knows both tokens if it may begin with the first, and neither
    # otherwise: log π = log ½, and each token's power mean is (½·1^β)^(1/β), so that L·EUBO̅ is
    # (2/β)·log ½: below log π for β < 2 (no constant of SPG's theorem is part of the formula).
    unlikely = -50.0
    table = torch.full((4, 2), unlikely, dtype=torch.float64)
    table[0b11, 0] = table[0b10, 1] = 0.0  # first token from nothing, then the second
    log_pi = float(random_order_log_likelihood(table))
    assert log_pi == pytest.approx(math.log(0.5))
    assert in_the_limit(table, 1.5) == pytest.approx(2 / 1.5 * math.log(0.5))
    assert in_the_limit(table, 1.5) < log_pi
    assert in_the_limit(table, 2.0) == pytest.approx(log_pi)
