"""KL estimators: values, gradients and behaviour far out."""

import math

import pytest
import torch

from stabledrl.functional import kl


def test_values_by_hand():
    delta = torch.tensor([-math.log(2), 0.0, math.log(4)])
    torch.testing.assert_close(kl.k1(delta), torch.tensor([math.log(2), 0.0, -math.log(4)]))
    # (log 2)²/2, 0, (log 4)²/2
    expected = torch.tensor([math.log(2) ** 2 / 2, 0.0, math.log(4) ** 2 / 2])
    torch.testing.assert_close(kl.k2(delta), expected)
    # 1/2 − 1 + log 2, 0, 4 − 1 − log 4
    expected = torch.tensor([math.log(2) - 0.5, 0.0, 3 - math.log(4)])
    torch.testing.assert_close(kl.k3(delta), expected)


@pytest.mark.parametrize(
    ("function", "slope"),
    [
        (kl.k1, lambda delta: -torch.ones_like(delta)),
        (kl.k2, lambda delta: delta),
        (kl.k3, lambda delta: delta.exp() - 1),
    ],
)
def test_gradients_in_float64(function, slope):
    delta = torch.linspace(-15, 15, 31, dtype=torch.float64).requires_grad_()
    function(delta).sum().backward()
    torch.testing.assert_close(delta.grad, slope(delta.detach()))


def test_k3_keeps_its_digits_near_zero():
    # exp(δ) − 1 − δ = δ²/2 + δ³/6 + …; in float32 the naive form is 5 % off here
    delta = torch.tensor([1e-3])
    assert kl.k3(delta).item() == pytest.approx(0.5e-6 + 1e-9 / 6, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_k3_far_out_is_finite_and_pulls_towards_the_reference(dtype):
    delta = torch.tensor([-800.0, -80.0, 21.0, 89.0, 800.0], dtype=dtype, requires_grad=True)
    value = kl.k3(delta)
    value.sum().backward()
    assert value.isfinite().all()
    assert (value > 0).all()
    assert delta.grad.isfinite().all()
    # the divergence grows away from 0 on both sides, so the slope has the sign of δ
    assert delta.grad.sign().tolist() == [-1, -1, 1, 1, 1]


def test_k3_continues_along_its_tangent():
    delta = torch.tensor([20.0, 25.0], dtype=torch.float64, requires_grad=True)
    value = kl.k3(delta)
    value.sum().backward()
    # value e^20 − 21 and slope e^20 − 1 at the limit; five further along that slope
    slope = math.exp(20) - 1
    torch.testing.assert_close(
        value.detach(), torch.tensor([slope - 20, slope - 20 + 5 * slope]).double()
    )
    torch.testing.assert_close(delta.grad, torch.tensor([slope, slope]).double())


def test_nan_stays_nan_and_expectation_is_the_divergence():
    assert all(f(torch.tensor([math.nan])).isnan().all() for f in (kl.k1, kl.k2, kl.k3))
    policy = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    reference = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    delta = reference.log() - policy.log()
    divergence = (policy * (policy / reference).log()).sum()
    torch.testing.assert_close((policy * kl.k1(delta)).sum(), divergence)
    torch.testing.assert_close((policy * kl.k3(delta)).sum(), divergence)


def test_k1_has_no_expected_gradient_and_k2_has_the_right_one():
    logits = torch.tensor([0.3, -0.4, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    log_policy = torch.log_softmax(logits, -1)
    policy = log_policy.detach().exp()
    divergence = (log_policy.exp() * (log_policy - reference.log())).sum()
    (true,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    delta = reference.log() - log_policy
    (first,) = torch.autograd.grad((policy * kl.k1(delta)).sum(), logits, retain_graph=True)
    (second,) = torch.autograd.grad((policy * kl.k2(delta)).sum(), logits)
    torch.testing.assert_close(first, torch.zeros(3).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(second, true)
