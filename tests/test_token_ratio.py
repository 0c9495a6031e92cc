"""Ratios of every token: PPO on tokens by autograd, and metrics by hand.

d1's published gradients are in tests/estimators/test_published_losses.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stabledrl import levels
from stabledrl.estimators.coupled_token import CoupledToken
from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.mean_field import MeanField
from stabledrl.functional import clipping, normalization
from stabledrl.policy import Policy
from stabledrl.types import Batch, Corruption, Estimator, Likelihood, Sequences
from tests.phases import (
    GROUPS,
    LENGTH,
    MEMBERS,
    TOKEN,
    algorithm,
    assert_same_direction,
    gradient,
    keyed,
    moved_policy,
    phase_reward,
    phase_sequences,
)
from tests.policies import MASK, tiny_policy


def plain_token_values(policy: Policy, sequences: Sequences, corruption: Corruption) -> Tensor:
    """Σ_draws weight·log p per token, one unpadded row at a time, straight from the backbone."""
    rows = []
    for row in range(len(sequences)):
        shown = sequences.prompt_mask[row]
        completion = sequences.completion_ids[row]
        total = torch.zeros(len(completion), dtype=torch.float64)
        for draw, mask in enumerate(corruption.mask[:, row]):
            prompt = sequences.prompt_ids[row]
            if corruption.prompt_mask is not None:
                prompt = torch.where(corruption.prompt_mask[draw, row], MASK, prompt)
            ids = torch.cat([prompt[shown], torch.where(mask, MASK, completion)])[None]
            everything = torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool)
            logits = policy.backbone(input_ids=ids, attention_mask=everything).logits[0]
            logp = logits[-len(completion) :].log_softmax(-1)[range(len(completion)), completion]
            total = total + torch.where(mask, logp, 0) * corruption.weight[draw, row]
        rows.append(total)
    return torch.stack(rows).view(GROUPS, MEMBERS, -1)


def over_all_tokens(term: Tensor, counted: Tensor) -> Tensor:
    return term.sum() / counted.sum()


def over_each_completion(term: Tensor, counted: Tensor) -> Tensor:
    return (term.sum(-1) / counted.sum(-1)).mean()


def over_the_length_asked_for(term: Tensor, counted: Tensor) -> Tensor:
    return term.sum(-1).mean() / LENGTH


def over_completions(term: Tensor, counted: Tensor) -> Tensor:
    return term.sum(-1).mean()


@pytest.mark.parametrize("estimator", [MeanField(), CoupledToken()], ids=["field", "coupled"])
@pytest.mark.parametrize(
    ("scale", "mean"),
    [
        (normalization.token, over_all_tokens),  # d1, DAPO
        (normalization.sequence_token_mean, over_each_completion),  # GRPO
        (normalization.fixed_length, over_the_length_asked_for),  # Dr.GRPO
        (normalization.group, over_completions),
    ],
    ids=lambda function: function.__name__,
)
def test_conditional_clipping_is_ppo_on_tokens(
    estimator: Estimator,
    scale: Callable[..., Tensor],
    mean: Callable[[Tensor, Tensor], Tensor],
) -> None:
    chosen = algorithm(ratio=TOKEN, estimator=estimator, normalization=scale)
    old, policy = tiny_policy().double(), moved_policy(0.05).double()
    reward = phase_reward()
    (batch,) = chosen.prepare(old, None, phase_sequences(), reward, 1, 1000, keyed)
    advantage = (reward.double() - reward.double().mean(-1, keepdim=True))[..., None]
    counted = batch.sequences.completion_mask.view(GROUPS, MEMBERS, -1)
    with torch.no_grad():
        before = plain_token_values(old, batch.sequences, batch.corruption)

    def ppo() -> Tensor:
        ratio = (plain_token_values(policy, batch.sequences, batch.corruption) - before).exp()
        term = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return -mean(torch.where(counted, term, 0), counted)

    metrics = chosen.loss(policy, batch).metrics
    assert metrics["train/clip_ratio/low_mean"] > 0
    assert metrics["train/clip_ratio/high_mean"] > 0
    assert metrics["train/clip_ratio/region_mean"] < 1
    ours = gradient(policy, lambda: chosen.loss(policy, batch).loss)
    expected = gradient(policy, ppo)
    assert_same_direction(ours, expected)


def test_metrics_by_hand_count_the_tokens_that_count() -> None:
    # Two completions of 3 and 6 counted tokens. Log-ratios: log 2 at the first token of the first,
    # −log 4 at the first of the second, 0 elsewhere; what comes after the end is never looked at.
    sequences = phase_sequences(1, 2)
    counted = sequences.completion_mask
    assert counted.sum(-1).tolist() == [3, 6]
    old = torch.zeros(2, 6)
    value = old.clone()
    value[0, 0], value[1, 0] = torch.tensor(2.0).log(), -torch.tensor(4.0).log()
    value[0, 5] = 1e3
    value.requires_grad_()

    class Given:
        def draw(self, sequences: Sequences, size: int, generator: object) -> Corruption:
            raise NotImplementedError

        def __call__(self, policy: object, sequences: object, corruption: object) -> Likelihood:
            return Likelihood(value.sum(-1), value.sum(-1), value)

    empty = torch.zeros(0, 2, 6)
    batch = Batch(
        sequences,
        Corruption(empty > 0, empty),
        2,
        torch.tensor([[-0.5, 0.5]]),
        torch.ones(1, 2, dtype=torch.bool),
        Likelihood(old.sum(-1), old.sum(-1), old),
    )
    chosen = algorithm(estimator=Given(), ratio=TOKEN, normalization=normalization.token)
    output = chosen.loss(tiny_policy(), batch)
    log2, total = 0.6931472, 7 + 2 + 0.25
    expected = {
        "train/ratio/mean": total / 9,
        "train/ratio/max": 2.0,
        "train/ratio/log_max": log2,
        "train/drift/old": log2 / 9,
        "train/ess": total**2 / (7 + 4 + 0.0625) / 9,
        "train/bypass_rate": 1 / 9,
        "train/clip_ratio/region_mean": 0.0,
        "train/weights/max": 2 / 9,
        "train/weights/sum": total / 9,
        "guard/clamped_ratios": 0.0,
        # −(2·(−½)·log 2 + ¼·½·(−2·log 2))/9
        "train/loss": (log2 + 0.25 * log2) / 9,
    }
    for name, number in expected.items():
        assert float(output.metrics[name]) == pytest.approx(number, rel=1e-5), name
    output.loss.backward()
    assert value.grad is not None
    assert (value.grad[~counted] == 0).all()


def test_noise_of_a_stress_test_is_one_number_per_token() -> None:
    sigma, policy = 0.7, tiny_policy()
    chosen = algorithm(
        estimator=MeanField(),
        ratio=replace(TOKEN, noise_std=sigma),
        clipping=clipping.none,
        normalization=normalization.token,
    )
    (batch,) = chosen.prepare(policy, None, phase_sequences(), phase_reward(), 1, 1000, keyed)
    noise = sigma * torch.randn((GROUPS, MEMBERS, LENGTH), generator=keyed("noise 0"))
    assert batch.log_ratio_noise is not None
    torch.testing.assert_close(batch.log_ratio_noise, noise)
    counted = batch.sequences.completion_mask.view(GROUPS, MEMBERS, LENGTH)
    metrics = chosen.loss(policy, batch).metrics
    assert float(metrics["train/ratio/log_max"]) == pytest.approx(float(noise[counted].max()))
    assert torch.equal(batch.groups(1, 3).log_ratio_noise, batch.log_ratio_noise[1:3])


def test_a_sample_without_verdict_leaves_all_its_tokens_out() -> None:
    chosen = algorithm(estimator=MeanField(), ratio=TOKEN, normalization=normalization.token)
    policy, reward = moved_policy(0.03), phase_reward()
    reward[0, 1] = float("nan")
    (batch,) = chosen.prepare(tiny_policy(), None, phase_sequences(), reward, 1, 1000, keyed)
    assert batch.old.token_value is not None
    rubbish = batch.old.token_value.clone()
    rubbish[1] = float("nan")
    other = replace(batch, old=replace(batch.old, token_value=rubbish))
    first, second = chosen.loss(policy, batch), chosen.loss(policy, other)
    assert first.loss == second.loss
    assert first.loss.isfinite()
    assert first.metrics == second.metrics


def test_an_estimator_without_token_values_is_told_so() -> None:
    chosen = algorithm(estimator=Elbo(), ratio=TOKEN)
    with pytest.raises(ValueError, match="ratio=token needs an estimator with token values"):
        chosen.prepare(tiny_policy(), None, phase_sequences(), phase_reward(), 1, 1000, keyed)


def test_units_of_both_levels_by_hand() -> None:
    sequences = phase_sequences(1, 2)
    likelihood = Likelihood(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.ones(2, 6))
    whole = levels.completions(likelihood, sequences).grouped(2)
    assert whole.value.tolist() == [[1, 2]]
    assert whole.score.tolist() == [[3, 4]]
    assert whole.counted.tolist() == [[[True], [True]]]
    tokens = levels.tokens(likelihood, sequences).grouped(2)
    assert tokens.value.shape == tokens.score.shape == (1, 2, 6)
    assert torch.equal(tokens.counted[0], sequences.completion_mask)
