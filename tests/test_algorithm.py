"""The assembled objective against objectives written out plainly, by autograd, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from stabledrl.algorithm import RatioLevel
from stabledrl.functional import clipping, normalization
from stabledrl.functional.kl import k2
from stabledrl.pairing import independent, paired
from stabledrl.penalty import DivergencePenalty
from stabledrl.policy import Policy
from stabledrl.types import Batch, Corruption, Likelihood, Sequences
from tests.phases import (
    GROUPS,
    MEMBERS,
    PER_TOKEN,
    SEQUENCE,
    algorithm,
    assert_same_direction,
    gradient,
    keyed,
    moved_policy,
    phase_reward,
    phase_sequences,
)
from tests.policies import MASK, tiny_policy


def plain_elbo(policy: Policy, sequences: Sequences, corruption: Corruption) -> Tensor:
    """mean_K (L/m)·Σ log p, one unpadded row at a time, straight from the backbone."""
    values = []
    for row in range(len(sequences)):
        prompt = sequences.prompt_ids[row][sequences.prompt_mask[row]]
        completion = sequences.completion_ids[row]
        counted = sequences.completion_mask[row]
        draws = []
        for mask in corruption.mask[:, row]:
            corrupted = torch.where(mask, MASK, completion)
            ids = torch.cat([prompt, corrupted])[None]
            everything = torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool)
            logits = policy.backbone(input_ids=ids, attention_mask=everything).logits[0]
            every = logits[len(prompt) :].log_softmax(-1)[range(len(completion)), completion]
            scored = mask & counted
            draws.append(every[scored].sum() * counted.sum() / scored.sum())
        values.append(torch.stack(draws).mean())
    return torch.stack(values).view(GROUPS, -1)


def plain_log_ratio(
    level: RatioLevel, policy: Policy, old: Policy, sequences: Sequences, corruption: Corruption
) -> Tensor:
    with torch.no_grad():
        before = plain_elbo(old, sequences, corruption)
    difference = plain_elbo(policy, sequences, corruption) - before
    if level is PER_TOKEN:
        difference = difference / sequences.completion_mask.sum(-1).view(GROUPS, -1)
    return difference


LEVELS = pytest.mark.parametrize(
    ("level", "step"), [(PER_TOKEN, 0.1), (SEQUENCE, 0.03)], ids=["per_token", "sequence"]
)


@LEVELS
def test_conditional_and_group_is_grpo(level: RatioLevel, step: float) -> None:
    chosen = algorithm(ratio=level)
    old, policy = tiny_policy().double(), moved_policy(step).double()
    reward = phase_reward()
    (batch,) = chosen.prepare(old, None, phase_sequences(), reward, 1, 1000, keyed)
    advantage = reward.double() - reward.double().mean(-1, keepdim=True)

    def grpo() -> Tensor:
        d = plain_log_ratio(level, policy, old, batch.sequences, batch.corruption)
        ratio = d.exp()
        clipped = ratio.clamp(0.8, 1.2)
        return -torch.minimum(ratio * advantage, clipped * advantage).mean(-1).mean()

    metrics = chosen.loss(policy, batch).metrics
    assert 0 < metrics["train/clip_ratio/region_mean"] < 1  # clipping happens, and not always
    assert metrics["train/clip_ratio/low_mean"] > 0
    assert metrics["train/clip_ratio/high_mean"] > 0
    ours = gradient(policy, lambda: chosen.loss(policy, batch).loss)
    assert_same_direction(ours, gradient(policy, grpo))


@LEVELS
@pytest.mark.parametrize("epsilon", [0.1, 5.0])
def test_unconditional_and_self_is_stabledrl(
    level: RatioLevel, step: float, epsilon: float
) -> None:
    chosen = algorithm(
        ratio=level,
        clipping=lambda d, a: clipping.unconditional(d, a, epsilon=epsilon),
        normalization=normalization.self_normalized,
    )
    old, policy = tiny_policy().double(), moved_policy(step).double()
    reward = phase_reward()
    (batch,) = chosen.prepare(old, None, phase_sequences(), reward, 1, 1000, keyed)
    advantage = reward.double() - reward.double().mean(-1, keepdim=True)

    def stabledrl() -> Tensor:
        d = plain_log_ratio(level, policy, old, batch.sequences, batch.corruption)
        weight = d.detach().exp().clamp(max(0, 1 - epsilon), 1 + epsilon)
        weight = weight / weight.sum(-1, keepdim=True)
        return -(weight * advantage * d).sum(-1).mean()

    ours = gradient(policy, lambda: chosen.loss(policy, batch).loss)
    assert_same_direction(ours, gradient(policy, stabledrl))


def test_all_corners_agree_at_unchanged_weights() -> None:
    policy = tiny_policy().double()
    gradients = []
    for rule in (clipping.conditional, clipping.none, clipping.unconditional, clipping.uniform):
        for scale in (normalization.group, normalization.self_normalized):
            chosen = algorithm(clipping=rule, normalization=scale)
            (batch,) = chosen.prepare(
                policy, None, phase_sequences(), phase_reward(), 1, 1000, keyed
            )
            gradients.append(gradient(policy, lambda c=chosen, b=batch: c.loss(policy, b).loss))
    assert gradients[0].abs().max() > 1e-3
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-6, atol=1e-10)


def prepared(scale: Callable[..., Tensor], **changes: object) -> tuple[object, Batch, Policy]:
    chosen = algorithm(normalization=scale, **changes)
    policy, old = moved_policy(0.03), tiny_policy()
    (batch,) = chosen.prepare(old, None, phase_sequences(), phase_reward(), 1, 1000, keyed)
    return chosen, batch, policy


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize(
    "scale",
    [
        normalization.group,
        normalization.self_normalized,
        normalization.sequence_token_mean,
        normalization.fixed_length,
        normalization.unnormalized,
    ],
    ids=lambda f: f.__name__,
)
def test_accumulation_gives_the_same_gradient(scale: Callable[..., Tensor], parts: int) -> None:
    chosen, batch, policy = prepared(scale, pairing=independent)
    whole = gradient(policy, lambda: chosen.loss(policy, batch).loss)
    size = GROUPS // parts
    losses = [
        gradient(policy, lambda i=i: chosen.loss(policy, batch.groups(i, i + size)).loss)
        for i in range(0, GROUPS, size)
    ]
    scale_of = float(whole.abs().max())
    torch.testing.assert_close(torch.stack(losses).mean(0), whole, rtol=1e-5, atol=1e-6 * scale_of)


def test_groups_keep_their_samples() -> None:
    _, batch, _ = prepared(normalization.group)
    batch = replace(batch, reference=batch.old)
    part = batch.groups(1, 3)
    samples = slice(MEMBERS, 3 * MEMBERS)
    assert torch.equal(part.sequences.completion_ids, batch.sequences.completion_ids[samples])
    assert torch.equal(part.corruption.mask, batch.corruption.mask[:, samples])
    assert torch.equal(part.old.value, batch.old.value[samples])
    assert part.reference is not None
    assert torch.equal(part.reference.value, batch.old.value[samples])
    assert torch.equal(part.advantage, batch.advantage[1:3])


@pytest.mark.parametrize("scale", [normalization.group, normalization.self_normalized])
@pytest.mark.parametrize("rubbish", [0.0, float("nan"), float("inf"), -1e6])
def test_a_sample_without_verdict_changes_nothing_for_the_others(
    scale: Callable[..., Tensor], rubbish: float
) -> None:
    chosen, policy = algorithm(normalization=scale), moved_policy(0.03)
    four, reward = phase_sequences(1, 4), torch.tensor([[0.0, 1.0, float("nan"), 0.25]])
    (batch,) = chosen.prepare(tiny_policy(), None, four, reward, 1, 1000, keyed)
    old = batch.old.value.clone()
    old[2] = rubbish
    batch = replace(batch, old=Likelihood(old, old))
    others = torch.tensor([0, 1, 3])
    three = Batch(
        four[others],
        batch.corruption[others],
        3,
        torch.tensor([[0.0, 1.0, 0.25]]) - 1.25 / 3,
        torch.ones(1, 3, dtype=torch.bool),
        batch.old[others],
    )
    with_it, without = chosen.loss(policy, batch), chosen.loss(policy, three)
    assert with_it.loss.item() == pytest.approx(without.loss.item(), rel=1e-5)
    torch.testing.assert_close(
        gradient(policy, lambda: chosen.loss(policy, batch).loss),
        gradient(policy, lambda: chosen.loss(policy, three).loss),
        rtol=1e-4,
        atol=1e-6,
    )
    for name, value in without.metrics.items():
        assert float(with_it.metrics[name]) == pytest.approx(float(value), rel=1e-4), name


def test_a_group_without_any_verdict_is_zero_and_finite() -> None:
    chosen, policy = algorithm(), tiny_policy()
    reward = torch.full((GROUPS, MEMBERS), float("nan"))
    (batch,) = chosen.prepare(policy, None, phase_sequences(), reward, 1, 1000, keyed)
    assert chosen.loss(policy, batch).loss == 0
    assert (gradient(policy, lambda: chosen.loss(policy, batch).loss) == 0).all()


SCALES = pytest.mark.parametrize(
    "scale",
    [
        normalization.group,
        normalization.self_normalized,
        normalization.batch_self,
        normalization.token,
        partial(normalization.token),  # as the configuration hands it over
        normalization.unnormalized,
    ],
    ids=["group", "self", "batch_self", "token", "token configured", "sum"],
)


@SCALES
def test_a_group_without_verdict_leaves_the_loss_and_the_number_of_groups(
    scale: Callable[..., Tensor],
) -> None:
    chosen = algorithm(normalization=scale, ratio=SEQUENCE, penalty=DivergencePenalty(0.3, k2))
    policy, old, reward = moved_policy(0.03), tiny_policy(), phase_reward()
    dropped = reward.clone()
    dropped[1] = float("nan")  # what a group filter makes of it
    (batch,) = chosen.prepare(old, old, phase_sequences(), dropped, 1, 1000, keyed)
    # the same masks, and three groups that never had a fourth
    kept = torch.tensor([0, 2, 3])
    samples = (kept[:, None] * MEMBERS + torch.arange(MEMBERS)).flatten()
    assert batch.reference is not None
    three = Batch(
        batch.sequences[samples],
        batch.corruption[samples],
        MEMBERS,
        batch.advantage[kept],
        batch.verdict[kept],
        batch.old[samples],
        batch.reference[samples],
    )
    with_it, without = chosen.loss(policy, batch), chosen.loss(policy, three)
    assert with_it.loss.item() == pytest.approx(without.loss.item(), rel=1e-5)
    whole = gradient(policy, lambda: chosen.loss(policy, batch).loss)
    expected = gradient(policy, lambda: chosen.loss(policy, three).loss)
    scale_of = float(expected.abs().max())
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-5 * scale_of)
    scale = getattr(scale, "func", scale)
    for name, value in without.metrics.items():
        # a Z over the whole step holds the number of groups of the batch, which is 4 here
        holds_count = name.startswith("train/weights/") and hasattr(scale, "needs_whole_step")
        factor = 4 / 3 if holds_count else 1
        assert float(with_it.metrics[name]) == pytest.approx(factor * float(value), rel=1e-4), name


@pytest.mark.parametrize("scale", [normalization.group, normalization.self_normalized])
def test_dropped_groups_and_accumulation(scale: Callable[..., Tensor]) -> None:
    # a batch with nothing left, one with all and one with half of its groups
    chosen = algorithm(normalization=scale, pairing=independent)
    policy, reward = moved_policy(0.03), phase_reward(6)
    reward[[0, 1, 4]] = float("nan")
    (batch,) = chosen.prepare(tiny_policy(), None, phase_sequences(6), reward, 1, 1000, keyed)
    assert batch.counted_share == 0.5
    whole = gradient(policy, lambda: chosen.loss(policy, batch).loss)
    parts = [
        gradient(policy, lambda i=i: chosen.loss(policy, batch.groups(i, i + 2)).loss)
        for i in (0, 2, 4)
    ]
    assert (parts[0] == 0).all()
    scale_of = float(whole.abs().max())
    torch.testing.assert_close(torch.stack(parts).mean(0), whole, rtol=1e-5, atol=1e-6 * scale_of)
    empty = chosen.loss(policy, batch.groups(0, 2)).metrics
    assert all(value.isfinite() for value in empty.values())
    assert (empty["train/ess"], empty["train/weights/sum"]) == (1, 0)


def test_a_nan_likelihood_reaches_the_guard() -> None:
    chosen, batch, policy = prepared(normalization.group)
    old = batch.old.value.clone()
    old[0] = float("nan")
    batch = replace(batch, old=Likelihood(old, old))
    assert chosen.loss(policy, batch).loss.isnan()


def test_a_paired_update_has_no_noise_in_the_reference_of_its_ratio() -> None:
    # the log-ratio is exactly what the weights changed, on the very masks of the batch
    chosen = algorithm(pairing=paired, ratio=SEQUENCE)
    old, policy = tiny_policy().double(), moved_policy(0.01).double()
    (batch,) = chosen.prepare(old, None, phase_sequences(), phase_reward(), 1, 1000, keyed)
    d = plain_log_ratio(SEQUENCE, policy, old, batch.sequences, batch.corruption)
    largest = chosen.loss(policy, batch).metrics["train/ratio/log_max"]
    assert largest.item() == pytest.approx(d.max().item(), abs=1e-5)


def test_noise_of_a_stress_test_is_added_to_the_log_ratios_and_nowhere_else() -> None:
    sigma, policy = 0.7, tiny_policy()
    noisy = algorithm(ratio=replace(PER_TOKEN, noise_std=sigma), clipping=clipping.none)
    first, second = noisy.prepare(policy, None, phase_sequences(), phase_reward(), 2, 1000, keyed)
    # paired masks: at unchanged weights d is the noise alone, so that Σ_i c_i·A_i·ℓ_i has
    # c_i = e^noise / G
    for update, batch in enumerate((first, second)):
        noise = sigma * torch.randn((GROUPS, MEMBERS), generator=keyed(f"noise {update}"))
        output = noisy.loss(policy, batch)
        largest = float(output.metrics["train/ratio/log_max"])
        assert largest == pytest.approx(float(noise.max()), abs=1e-5)
        score = noisy.estimator(policy, batch.sequences, batch.corruption).score
        per_token = score.view(GROUPS, MEMBERS) / batch.sequences.length.view(GROUPS, MEMBERS)
        expected = -(noise.exp() / MEMBERS * batch.advantage * per_token).sum(1).mean()
        torch.testing.assert_close(output.loss, expected)
    # the same groups in other batches have the same noise
    whole, part = first.log_ratio_noise, first.groups(1, 3).log_ratio_noise
    assert whole is not None
    assert part is not None
    assert torch.equal(part, whole[1:3])
    quiet = algorithm(ratio=PER_TOKEN)
    (batch,) = quiet.prepare(policy, None, phase_sequences(), phase_reward(), 1, 1000, keyed)
    assert batch.log_ratio_noise is None
