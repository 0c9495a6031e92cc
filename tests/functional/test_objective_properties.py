"""Properties that hold for all numbers, and autograd against the closed form in float64."""

import math
from functools import partial

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stabledrl.functional import clipping as clippings
from stabledrl.functional import normalization as normalizations
from stabledrl.functional.objective import policy_loss

GROUP, MEMBER, WIDTH = 2, 5, 4
few = settings(max_examples=30, deadline=None)


@st.composite
def groups(draw, scale=3.0):
    """(log-ratio, advantage, gradient of every score) in float64, from one drawn seed."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    width = draw(st.floats(0.01, scale))
    make = partial(torch.randn, generator=generator, dtype=torch.float64)
    log_ratio = width * make(GROUP, MEMBER, 1)
    return log_ratio, make(GROUP, MEMBER), make(GROUP, MEMBER, WIDTH)


def update(vectors, advantage, c):
    """Minus the gradient of the loss for scores linear in the parameters."""
    parameters = torch.zeros(WIDTH, dtype=torch.float64, requires_grad=True)
    loss = policy_loss((vectors @ parameters).unsqueeze(-1), advantage, c)
    return -torch.autograd.grad(loss, parameters)[0]


KEEPING = [clippings.none, clippings.uniform, clippings.unconditional]


@few
@given(groups(scale=50.0))
@pytest.mark.parametrize("clip", KEEPING, ids=lambda function: function.__name__)
def test_self_normalized_update_is_a_convex_combination(clip, coefficient, group):
    log_ratio, advantage, vectors = group
    c = coefficient(clip, normalizations.self_normalized, log_ratio, advantage)
    assert (c >= 0).all()
    torch.testing.assert_close(c.sum((1, 2)), torch.ones(GROUP).double())
    sample_gradients = advantage.unsqueeze(-1) * vectors
    for index in range(GROUP):
        alone = slice(index, index + 1)
        step = update(vectors[alone], advantage[alone], c[alone])
        largest = sample_gradients[index].norm(dim=-1).max()
        assert step.norm() <= largest * (1 + 1e-9)
        # inside the hull along any direction
        projections = sample_gradients[index] @ step
        assert projections.min() - 1e-9 <= step @ step <= projections.max() + 1e-9


@few
@given(groups(), st.floats(-500, 500))
def test_a_common_scale_of_the_weights_changes_nothing_under_self(coefficient, group, shift):
    log_ratio, advantage, _ = group
    for normalization in (normalizations.self_normalized, normalizations.batch_self):
        before = coefficient(clippings.none, normalization, log_ratio, advantage)
        after = coefficient(clippings.none, normalization, log_ratio + shift, advantage)
        torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-12)


@few
@given(groups(scale=0.2), st.floats(-0.3, 0.3))
def test_a_shift_changes_nothing_under_stabledrl_while_nothing_clips(coefficient, group, shift):
    log_ratio, advantage, _ = group
    assume((log_ratio.abs() + abs(shift)).max() < math.log(6))
    before = coefficient(
        clippings.unconditional, normalizations.self_normalized, log_ratio, advantage
    )
    after = coefficient(
        clippings.unconditional, normalizations.self_normalized, log_ratio + shift, advantage
    )
    torch.testing.assert_close(after, before, rtol=1e-9, atol=0)


@few
@given(groups(scale=0.2), st.floats(0.1, 2.0))
def test_under_group_the_common_scale_goes_through(coefficient, group, shift):
    log_ratio, advantage, _ = group
    before = coefficient(clippings.none, normalizations.group, log_ratio, advantage)
    after = coefficient(clippings.none, normalizations.group, log_ratio + shift, advantage)
    torch.testing.assert_close(after, before * math.exp(shift))


@few
@given(groups(scale=100.0), st.floats(0.05, 20.0))
def test_unconditional_weights_stay_in_their_interval_for_both_signs(group, epsilon):
    log_ratio, advantage, _ = group
    for sign in (advantage.abs(), -advantage.abs()):
        log_weight, keep = clippings.unconditional(log_ratio, sign, epsilon)
        weight = log_weight.exp()
        assert keep.all()
        assert (weight <= (1 + epsilon) * (1 + 1e-9)).all()
        assert (weight >= max(0.0, 1 - epsilon) * (1 - 1e-9)).all()
        torch.testing.assert_close(
            weight, log_ratio.exp().clamp(max(0.0, 1 - epsilon), 1 + epsilon)
        )


def test_from_epsilon_one_on_there_is_no_lower_bound():
    log_ratio = torch.full((1, 1, 1), -15.0)
    for epsilon in (1.0, 5.0):
        log_weight, _ = clippings.unconditional(log_ratio, torch.ones(1, 1), epsilon)
        assert log_weight.item() == -15
    log_weight, _ = clippings.unconditional(log_ratio, torch.ones(1, 1), 0.75)
    assert log_weight.item() == pytest.approx(math.log(0.25))


@few
@given(st.floats(0.2, 15.0), st.floats(0.1, 10.0))
def test_conditional_leaves_negatives_unbounded(coefficient, log_ratio, size):
    d = torch.full((1, 1, 1), log_ratio, dtype=torch.float64)
    a = torch.full((1, 1), -size, dtype=torch.float64)
    raw = coefficient(clippings.conditional, normalizations.group, d, a).item()
    assert raw == pytest.approx(math.exp(log_ratio))
    assert coefficient(clippings.conditional, normalizations.group, d, -a).item() == 0
    capped = coefficient(clippings.capped_negative, normalizations.group, d, a).item()
    assert capped == pytest.approx(1.2)


@pytest.mark.parametrize(
    "normalization",
    [normalizations.group, normalizations.self_normalized, normalizations.batch_self],
    ids=lambda function: function.__name__,
)
def test_all_corners_are_equal_where_nothing_has_moved(clipping, normalization, coefficient):
    # ρ ≡ 1: every clipping gives 1/G under group, self and batch_self
    advantage = torch.tensor([[1.0, -2.0, 0.0, 0.5], [3.0, 1.0, -1.0, -1.0]])
    c = coefficient(clipping, normalization, torch.zeros(2, 4, 1), advantage)
    assert torch.equal(c, torch.full((2, 4, 1), 0.25))


def ppo(ratio, advantage, low, high):
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


@few
@given(groups(), st.floats(0.01, 0.9), st.floats(0.01, 5.0))
def test_conditional_and_group_is_ppo(coefficient, group, low, high):
    old, advantage, vectors = group
    parameters = torch.ones(WIDTH, dtype=torch.float64, requires_grad=True)
    score = vectors @ parameters
    log_ratio = score - old.squeeze(-1)
    for bound in (math.log(1 - low), math.log(1 + high)):
        assume((log_ratio - bound).abs().min() > 1e-9)
    published = -ppo(log_ratio.exp(), advantage, low, high).mean()
    (expected,) = torch.autograd.grad(published, parameters)
    clip = partial(clippings.conditional, epsilon_low=low, epsilon_high=high)
    c = coefficient(clip, normalizations.group, log_ratio.detach().unsqueeze(-1), advantage)
    ours = -update(vectors, advantage, c)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@few
@given(groups(), st.floats(1.5, 10.0))
def test_dual_and_group_is_dual_clip_ppo(coefficient, group, cap):
    old, advantage, vectors = group
    parameters = torch.ones(WIDTH, dtype=torch.float64, requires_grad=True)
    score = vectors @ parameters
    log_ratio = score - old.squeeze(-1)
    for bound in (0.8, 1.2, cap):
        assume((log_ratio - math.log(bound)).abs().min() > 1e-9)
    single = ppo(log_ratio.exp(), advantage, 0.2, 0.2)
    published = torch.where(advantage < 0, torch.maximum(single, cap * advantage), single)
    (expected,) = torch.autograd.grad(-published.mean(), parameters)
    clip = partial(clippings.dual, cap=cap)
    c = coefficient(clip, normalizations.group, log_ratio.detach().unsqueeze(-1), advantage)
    torch.testing.assert_close(-update(vectors, advantage, c), expected, rtol=1e-9, atol=1e-9)


def test_a_clipping_of_ones_own_composes_with_every_normalization(normalization, coefficient):
    def square_root(log_ratio, advantage):
        return log_ratio / 2, torch.ones_like(log_ratio, dtype=torch.bool)

    d = torch.tensor([[[2 * math.log(3)], [0.0]]])
    c = coefficient(square_root, normalization, d, torch.tensor([[1.0, -1.0]]))
    # √9 = 3 against 1
    assert (c[0, 0] / c[0, 1]).item() == pytest.approx(3)
