"""Estimators and whole objectives against what published code computed from the same masks.

wd1 end to end (loss and gradient), d1 with more of the prompt hidden, GDPO's Monte-Carlo ELBO, and
the decoding states that TraceRL and AGRPO score. All on the published tiny LLaDA, but for
TraceRL, whose model attends by blocks: only its states are reproduced here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from stabledrl.algorithm import Algorithm
from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.mean_field import MeanField
from stabledrl.estimators.trajectory import Trajectory
from stabledrl.functional import advantage, clipping, normalization
from stabledrl.functional.masking import counted_tokens
from stabledrl.functional.reduce import token_log_probability
from stabledrl.policy import Policy
from stabledrl.types import Corruption, Likelihood, Scorer, Sequences
from tests.phases import SEQUENCE, algorithm, keyed
from tests.published import (
    END,
    MASK,
    PROMPT,
    assert_agrees,
    mean_field_corruption,
    published_sequences,
)

FOLDER = Path(__file__).parent.parent / "golden"


@dataclass(frozen=True)
class Recorded:
    """The mean field with masks from a recording instead of drawn ones."""

    perturbed: Tensor  # input ids

    def draw(self, sequences: Sequences, group_size: int, generator: torch.Generator) -> Corruption:
        return mean_field_corruption(sequences, self.perturbed)

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        return MeanField()(policy, sequences, corruption)


def loss_and_gradient(
    chosen: Algorithm, policy: Policy, sequences: Sequences, reward: Tensor
) -> tuple[Tensor, Tensor]:
    """The first inner update: loss, and its gradient with respect to the final norm."""
    (batch,) = chosen.prepare(policy, None, sequences, reward[None], 1, 1000, keyed)
    loss = chosen.loss(policy, batch).loss
    (gradient,) = torch.autograd.grad(loss, policy.backbone.model.norm.weight)
    return loss.detach(), gradient


WD1 = load_file(FOLDER / "wd1.safetensors")


def wd1() -> Algorithm:
    return algorithm(
        estimator=Recorded(WD1["perturbed"]),
        ratio=SEQUENCE,
        clipping=clipping.uniform,
        normalization=normalization.unnormalized,
        advantage=advantage.softmax,
        completion_length=16,
    )


@pytest.mark.parametrize("case", ["graded", "binary", "large"])
def test_wd1_is_uniform_weights_on_softmax_advantages(case: str, policy: Policy) -> None:
    # the recording begins with centred rewards, which are their own advantages
    reward = WD1[f"{case}/advantages"]
    sequences = published_sequences(WD1["input_ids"])
    assert torch.equal(sequences.completion_mask, WD1["completion_mask"] > 0)
    loss, gradient = loss_and_gradient(wd1(), policy, sequences, reward)
    assert_agrees("wd1 loss", loss, WD1[f"{case}/loss"])
    assert_agrees("wd1 gradient", gradient, WD1[f"{case}/grad_final_norm"])


def test_wd1_learns_nothing_from_equal_rewards(policy: Policy) -> None:
    sequences = published_sequences(WD1["input_ids"])
    for reward in (WD1["zero/advantages"], torch.full((4,), 0.7)):
        loss, gradient = loss_and_gradient(wd1(), policy, sequences, reward)
        assert loss == WD1["zero/loss"] == 0
        assert torch.equal(gradient, torch.zeros(64))


def test_wd1_without_its_negative_half(policy: Policy) -> None:
    """Its `positive_only` variant is an advantage of one's own: one that equal rewards do not make
    zero, which is why it is none of ours.
    """
    chosen = replace(wd1(), advantage=lambda reward: reward.softmax(-1))
    sequences = published_sequences(WD1["input_ids"])
    loss, _ = loss_and_gradient(chosen, policy, sequences, WD1["graded/advantages"])
    assert_agrees("wd1 loss", loss, WD1["positive_only/loss"])


@torch.no_grad()
def test_token_values_of_wd1(policy: Policy) -> None:
    sequences = published_sequences(WD1["input_ids"], every_token=True)
    estimator = wd1().estimator
    corruption = estimator.draw(sequences, 4, keyed("any"))
    assert torch.equal(corrupted(sequences, corruption)[0], WD1["perturbed"])
    value = estimator(policy, sequences, corruption).token_value
    assert value is not None
    assert_agrees("wd1 value", value, WD1["logp"])


D1 = load_file(FOLDER / "d1.safetensors")


@torch.no_grad()
def test_mean_field_of_d1_with_more_of_the_prompt_hidden(policy: Policy) -> None:
    sequences = published_sequences(D1["input_ids"], every_token=True)
    hidden = D1["perturbed_p0.3"][:, :PROMPT] == MASK
    assert hidden.float().mean() > 0.15
    estimator = Recorded(D1["perturbed_p0.3"])
    value = estimator(policy, sequences, estimator.draw(sequences, 4, keyed("any"))).token_value
    assert value is not None
    assert_agrees("d1 value", value, D1["logp_new_p0.3"])


@torch.no_grad()
def test_elbo_of_gdpo_by_monte_carlo(policy: Policy) -> None:
    """Weights L/m. Positions after the end token count in that code: here eos=all, so L = 16."""
    data = load_file(FOLDER / "gdpo_monte_carlo.safetensors")
    # [batch, sample, draw, position]: four masks of every sample
    perturbed = data["mc/perturbed"].transpose(1, 2).flatten(0, 1)
    recorded = data["mc/token_logp"].transpose(1, 2).flatten(0, 1)
    hidden = perturbed[..., PROMPT:] == MASK
    sequences = published_sequences(data["input_ids"], every_token=True)
    estimator = Elbo(draws=4, masking=lambda *_: (hidden, None))
    corruption = estimator.draw(sequences, 4, keyed("any"))
    assert torch.equal(corrupted(sequences, corruption), perturbed)
    value = estimator(policy, sequences, corruption).value
    assert_agrees("gdpo value", value, data["mc/elbo"])
    # and the formula of method.md from the recorded log-probabilities
    plain = torch.where(hidden, recorded, 0).sum(-1) * 16 / hidden.sum(-1)
    torch.testing.assert_close(plain.mean(0), data["mc/elbo"], rtol=1e-5, atol=0)


TRACERL = load_file(FOLDER / "tracerl_states.safetensors")
# case, completion tokens: three completions in blocks of four after six tokens of prompt
TRACES = [(f"R{length}/TraceRL_shrink{n}", length, n) for length, n in
          ((12, 1), (12, 2), (12, 4), (10, 1), (10, 2))]  # fmt: skip


@pytest.mark.parametrize(("case", "length", "shrink"), TRACES, ids=[row[0] for row in TRACES])
def test_states_of_tracerl_block_by_block(case: str, length: int, shrink: int) -> None:
    """TraceRL puts the i-th group of every block in one row; a block is a decoding of its own.

    Its log-probabilities and losses need attention by blocks and are no part of this test.
    """
    ids, step = TRACERL[f"R{length}/input_ids"], TRACERL[f"R{length}/step_map"]
    rows = TRACERL[f"{case}/extended_input_ids"][:, 6 + length :]
    scored = TRACERL[f"{case}/p_mask"][:, 6:] > 0
    counted = counted_tokens(ids[:, 6:], (END,))
    compared = 0
    for sample in range(3):
        mine = TRACERL[f"{case}/source_row"] == sample
        for at in (slice(first, first + 4) for first in range(0, length, 4)):
            if not counted[sample, at].any():
                continue
            block = Sequences(
                ids[[sample], :6],
                ids[[sample], :6] > 0,
                ids[[sample], 6:][:, at],
                counted[[sample], at],
                step[[sample], at],
            )
            drawn = Trajectory(shrink=shrink).draw(block, 1, keyed("any"))
            published = scored[mine][:, at]
            used = published.any(-1)  # rows that other blocks of the sample need are empty here
            assert torch.equal(drawn.weight[:, 0] > 0, published[used])
            assert torch.equal(corrupted(block, drawn)[:, 0, 6:], rows[mine][used][:, at])
            compared += int(used.sum())
    assert compared >= 3 * length // 4


AGRPO = load_file(FOLDER / "agrpo_states.safetensors")


class AsSampled:
    """A policy at temperature 0.6 among the tokens that the sampler had left over."""

    def __init__(self, policy: Policy, allowed: Tensor) -> None:
        self.policy, self.allowed = policy, allowed

    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Tensor:
        completion = sequences.completion_ids.masked_fill(mask, MASK)
        ids = torch.cat([sequences.prompt_ids.expand(len(mask), -1, -1), completion], -1)
        everything = torch.ones_like(ids.flatten(0, 1)) > 0
        logits = self.policy(ids.flatten(0, 1), everything, everything).view(*ids.shape, -1)
        # rows are scored state by state, every state for all samples
        allowed = self.allowed.repeat(len(everything) // len(self.allowed), 1, 1)
        allowed = allowed.view(*mask.shape, -1)
        logits = (logits[..., PROMPT:, :] / 0.6).masked_fill(~allowed, -torch.inf)
        values = token_log_probability(logits, sequences.completion_ids.expand_as(mask))
        return torch.where(mask, values, 0)


@pytest.mark.parametrize(
    "case", ["uniform_lowdisc_K4", "uniform_iid_K4", "entropy_lowdisc_K4", "uniform_lowdisc_K1"]
)
@torch.no_grad()
def test_trajectory_scores_the_states_of_agrpo(case: str, policy: Policy) -> None:
    """AGRPO draws some of the passes and scores the tokens that each of them committed."""
    ids = torch.cat([AGRPO["prompt_ids"], AGRPO["completion_ids"]], 1)
    # that code counts what comes after the end token as well
    sequences = published_sequences(ids, every_token=True, step=AGRPO["unmask_steps"])
    estimator = Trajectory()
    corruption = estimator.draw(sequences, 3, keyed("any"))
    assert len(corruption.mask) == 8  # two tokens a pass
    sample, taken = torch.arange(3)[:, None], AGRPO[f"{case}/steps"]
    inputs = corrupted(sequences, corruption)[taken, sample]
    assert torch.equal(inputs, AGRPO[f"{case}/inputs"])
    scored = corruption.weight[taken, sample] > 0
    assert torch.equal(scored, AGRPO[f"{case}/scored"] > 0)
    scorer = AsSampled(policy, AGRPO["sampling_masks"] > 0)
    value = estimator(scorer, sequences, corruption).token_value
    assert value is not None
    ours = value[:, None].expand(scored.shape)[scored].view(*taken.shape, 2)
    assert_agrees("agrpo value", ours, AGRPO[f"{case}/logp_new"])


def corrupted(sequences: Sequences, corruption: Corruption) -> Tensor:
    """What the model is shown, [draw, sample, position]."""
    completion = sequences.completion_ids.masked_fill(corruption.mask, MASK)
    prompt = sequences.prompt_ids.expand(len(completion), -1, -1)
    if corruption.prompt_mask is not None:
        prompt = prompt.masked_fill(corruption.prompt_mask, MASK)
    return torch.cat([prompt, completion], -1)
