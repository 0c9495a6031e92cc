"""Numbers that overflow: extreme log-ratios × advantages × dtypes × clippings × normalizations."""

import math

import pytest
import torch

from stabledrl.functional import clipping as clippings
from stabledrl.functional import normalization as normalizations
from stabledrl.functional import ratio
from stabledrl.functional.objective import policy_loss

LOG_RATIO = torch.tensor([-800.0, -80.0, 0.0, 80.0, 89.0, 800.0])  # exact in every dtype
ADVANTAGE = torch.tensor([-1.0, 0.0, 1.0])


def grid(shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """All 18 pairs of log-ratio and advantage, as [group, member]."""
    pairs = torch.cartesian_prod(LOG_RATIO, ADVANTAGE)
    return pairs[:, 0].reshape(shape), pairs[:, 1].reshape(shape)


@pytest.mark.parametrize("shape", [(1, 18), (6, 3), (18, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradient_are_finite(clipping, normalization, coefficient, dtype, shape):
    log_ratio, advantage = grid(shape)
    old_value = torch.zeros(shape, dtype=dtype)
    length = torch.full(shape, 4)
    # Float16 cannot hold a gradient of exp(20): scores are float32 there, as
    # token_log_probability returns them. The other types get their gradient in their own type.
    leaf_type = torch.float32 if dtype == torch.float16 else dtype
    leaf = log_ratio.to(leaf_type).requires_grad_()
    d = ratio.sequence_log_ratio(leaf.detach().to(dtype), old_value, length)
    assert torch.equal(d.squeeze(-1), log_ratio)
    c = coefficient(clipping, normalization, d, advantage, length=length)
    loss = policy_loss(ratio.sequence_score(leaf, length), advantage, c)
    loss.backward()
    assert c.isfinite().all()
    assert loss.isfinite()
    assert leaf.grad.isfinite().all()
    assert leaf.grad[advantage == 0].eq(0).all()


def test_zero_advantage_gives_exactly_zero_even_with_infinite_scores(
    clipping, normalization, coefficient
):
    log_ratio, _ = grid((6, 3))
    advantage = torch.zeros(6, 3)
    score = torch.full((6, 3, 1), -math.inf, requires_grad=True)
    c = coefficient(clipping, normalization, log_ratio.unsqueeze(-1), advantage)
    loss = policy_loss(score, advantage, c)
    loss.backward()
    assert loss.item() == 0
    assert score.grad.eq(0).all()


def test_nan_stays_nan(clipping, normalization, coefficient):
    log_ratio = torch.zeros(2, 3, 1)
    log_ratio[0, 1] = math.nan
    advantage = torch.tensor([[1.0, -1.0, 0.5], [1.0, -1.0, 0.5]])
    c = coefficient(clipping, normalization, log_ratio, advantage)
    loss = policy_loss(torch.zeros(2, 3, 1), advantage, c)
    # `uniform` does not look at the ratio; its NaN comes through the score
    assert loss.isnan() == (clipping is not clippings.uniform)
    score = torch.zeros(2, 3, 1)
    score[0, 1] = math.nan
    c = coefficient(clipping, normalization, torch.zeros(2, 3, 1), advantage)
    assert policy_loss(score, advantage, c).isnan()


@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
def test_an_infinite_log_ratio_never_gives_an_infinite_coefficient(
    clipping, normalization, coefficient, infinity
):
    log_ratio = torch.tensor([[infinity, 0.0, 1.0], [0.0, 0.0, 0.0]]).unsqueeze(-1)
    advantage = torch.tensor([[-1.0, 1.0, 1.0], [1.0, -1.0, 0.0]])
    c = coefficient(clipping, normalization, log_ratio, advantage)
    assert not c.isinf().any()


def test_a_clamped_sample_keeps_its_clamped_weight(coefficient):
    log_ratio = torch.tensor([[[800.0], [-800.0]]])
    c = coefficient(clippings.none, normalizations.group, log_ratio, torch.tensor([[1.0, 1.0]]))
    torch.testing.assert_close(c.flatten(), torch.tensor([math.exp(20), math.exp(-20)]) / 2)


def test_self_normalization_is_not_clamped(coefficient):
    # 800 against 800 − log 3: weights 3/4 and 1/4, which a clamp at 20 would make equal
    log_ratio = torch.tensor([[[800.0], [800.0 - math.log(3)]]])
    advantage = torch.tensor([[1.0, -1.0]])
    for normalization in (normalizations.self_normalized, normalizations.batch_self):
        c = coefficient(clippings.none, normalization, log_ratio, advantage)
        torch.testing.assert_close(c.flatten(), torch.tensor([0.75, 0.25]), rtol=1e-4, atol=0)


def test_unconditional_bounds_both_signs(coefficient):
    log_ratio, advantage = grid((6, 3))
    c = coefficient(
        clippings.unconditional, normalizations.group, log_ratio.unsqueeze(-1), advantage
    )
    product = (c.squeeze(-1) * advantage).abs()
    # (1 + ε)/G = 6/3, reached by both signs
    assert product.max().item() == pytest.approx(2)
    assert product[advantage < 0].max().item() == pytest.approx(2)
    assert product[advantage > 0].max().item() == pytest.approx(2)


def test_conditional_leaves_the_bypass_open(coefficient):
    log_ratio, advantage = grid((6, 3))
    d = log_ratio.unsqueeze(-1)
    c = coefficient(clippings.conditional, normalizations.group, d, advantage).squeeze(-1)
    assert c[advantage < 0].max().item() == pytest.approx(math.exp(20) / 3, rel=1e-6)
    assert c[advantage > 0].max().item() == pytest.approx(1 / 3)
