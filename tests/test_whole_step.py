"""The mean of several processes' gradients is the gradient of one, for every normalization."""

from functools import partial

import pytest
import torch

from stabledrl.estimators.block_elbo import BlockElbo
from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.mean_field import MeanField
from stabledrl.functional import clipping, normalization
from stabledrl.penalty import DivergencePenalty, divided, pooled
from stabledrl.samplers.block import BlockDiffusion
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from stabledrl.training.phases import PhaseCollector, PhaseSettings
from stabledrl.whole_step import over_processes
from tests.block_policies import block_policy
from tests.phases import (
    PER_TOKEN,
    SEQUENCE,
    TOKEN,
    algorithm,
    gradient,
    keyed,
    moved_policy,
    phase_reward,
    phase_sequences,
)
from tests.policies import tiny_policy
from tests.shares import of_all
from tests.training.small_runs import LENGTH, Digits, lively_policy

NORMALIZATIONS = {
    normalization.group: PER_TOKEN,
    normalization.self_normalized: TOKEN,
    normalization.batch_self: PER_TOKEN,
    normalization.sequence_token_mean: SEQUENCE,
    normalization.fixed_length: SEQUENCE,
    normalization.token: TOKEN,
    normalization.length_weighted: PER_TOKEN,
    normalization.unnormalized: PER_TOKEN,
}


def reward():
    """One group without any verdict, one with a missing one."""
    found = phase_reward()
    found[1] = float("nan")
    found[2, 0] = float("nan")
    return found


def step(chosen, policy, share, batch):
    """Loss and gradient of one process's batch of the only step."""
    shared = over_processes(chosen, share)
    seen = []

    def loss():
        seen.append(shared.loss(policy, batch).loss)
        return seen[0]

    found = gradient(policy, loss)
    return seen[0].detach(), found


def assert_shared_step_is_whole(chosen):
    start = tiny_policy().double()
    # made here: new weights come from the random state that threads have in common
    policies = [moved_policy(0.05).double() for _ in range(2)]

    def work(share):
        arguments = (start, start, phase_sequences(), reward(), 1, 1000, keyed)
        [batch] = chosen.prepare(*arguments, share)
        return step(chosen, policies[share.rank], share, batch)

    [(loss, whole)] = of_all(1, work)
    parts = of_all(2, work, batch=2)
    assert float(whole.abs().max()) > 1e-3
    mean = torch.stack([part for _, part in parts]).mean(0)
    torch.testing.assert_close(mean, whole, rtol=1e-5, atol=1e-5 * float(whole.abs().max()))
    torch.testing.assert_close(sum(value for value, _ in parts) / 2, loss, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("chosen", NORMALIZATIONS, ids=lambda f: f.__name__)
def test_every_normalization(chosen):
    assert_shared_step_is_whole(
        algorithm(
            estimator=MeanField(0.0),
            normalization=chosen,
            ratio=NORMALIZATIONS[chosen],
            clipping=clipping.conditional,
        )
    )


@pytest.mark.parametrize("level", [pooled, divided], ids=lambda f: f.__name__)
def test_divergences_over_the_step_and_per_group(level):
    penalty = DivergencePenalty(coefficient=0.5, level=level)
    assert_shared_step_is_whole(algorithm(estimator=MeanField(0.0), penalty=penalty))


def test_without_the_other_processes_a_mean_over_the_step_is_another():
    # the test above can fail: two halves normalised by themselves are not the whole
    chosen = algorithm(estimator=MeanField(0.0), normalization=normalization.token, ratio=TOKEN)
    start = tiny_policy().double()
    [batch] = chosen.prepare(start, None, phase_sequences(), reward(), 1, 1000, keyed)

    def alone(groups):
        policy = moved_policy(0.05).double()
        return gradient(policy, lambda: chosen.loss(policy, groups).loss)

    whole = alone(batch)
    halves = (alone(batch.groups(0, 2)) + alone(batch.groups(2, 4))) / 2
    assert float((halves - whole).abs().max()) > 1e-2 * float(whole.abs().max())


@pytest.mark.parametrize(
    ("sampler", "estimator", "start", "policy"),
    [
        (SemiAutoregressive(LENGTH, 3, 4), Elbo(draws=2), tiny_policy, lively_policy),
        (BlockDiffusion(LENGTH, 3, 4), BlockElbo(draws=2), *[partial(block_policy, 3)] * 2),
    ],
    ids=["bidirectional", "blocks"],
)
def test_a_phase_is_the_same_whatever_the_number_of_processes(sampler, estimator, start, policy):
    settings = PhaseSettings(8, 3, 2, prompts_per_batch=2, sampling_rows=5, drift_every=1)
    noisy = PER_TOKEN.__class__(PER_TOKEN.log_ratio, PER_TOKEN.score, noise_std=0.3)
    chosen = algorithm(ratio=noisy, estimator=estimator)
    collector = PhaseCollector(Digits(), sampler, chosen, settings, seed=0)
    start, policies = start(), [policy(), policy()]

    def collected(share):
        return collector(policies[share.rank], start, 3, share)

    [one] = of_all(1, collected)
    two = of_all(2, collected)
    for rank, phase in enumerate(two):
        assert phase.rollout.texts == one.rollout.texts
        assert phase.rollout.rewards == one.rollout.rewards
        assert torch.equal(phase.rollout.completions.step, one.rollout.completions.step)
        assert phase.rollout.completions.forwards == pytest.approx(one.rollout.completions.forwards)
        for name in one.metrics.keys() - {"time/rollout_s", "time/reward_s", "perf/tokens_per_s"}:
            assert phase.metrics[name] == pytest.approx(one.metrics[name], rel=1e-5), name
        # ranks 0 and 1 have groups 0 1 4 5 and 2 3 6 7, with the masks and noise of those
        own = torch.tensor([0, 1, 4, 5]) + 2 * rank
        for mine, whole in zip(phase.batches, one.batches, strict=True):
            mask = whole.corruption.mask.view(2, 8, 3, LENGTH)[:, own].flatten(1, 2)
            assert torch.equal(mine.corruption.mask, mask)
            assert torch.equal(mine.log_ratio_noise, whole.log_ratio_noise[own])
            assert torch.equal(mine.advantage, whole.advantage[own])
            old = whole.old.value.view(8, 3)[own].flatten()
            torch.testing.assert_close(mine.old.value, old, rtol=1e-5, atol=1e-5)
