"""Methods whose rows are no completions of ours: the same objective, once the rows are regrouped.

AGRPO's sample is a decoding state, TraceRL's a row of states, DMPO's a replicate. Their losses and
gradients come out of our parts, up to the factor that the other number of rows makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.trajectory import Trajectory
from stabledrl.functional import advantage as advantages
from stabledrl.functional import clipping, kl, normalization
from stabledrl.penalty import DivergencePenalty, fixed_length
from stabledrl.policy import Policy
from stabledrl.types import Batch, Corruption, Likelihood, Scorer, Sequences
from tests.estimators.test_published import AGRPO, TRACERL, AsSampled
from tests.phases import PER_TOKEN, TOKEN, algorithm, keyed
from tests.published import END, MASK, PROMPT, assert_agrees, clipped_value, published_sequences

FOLDER = Path(__file__).parent.parent / "golden"
ppo = partial(clipping.conditional, epsilon_low=0.2, epsilon_high=0.2)


def gradient(loss: Tensor, policy: Policy) -> Tensor:
    (found,) = torch.autograd.grad(loss, policy.backbone.model.norm.weight)
    return found


AGRPO_LOSSES = load_file(FOLDER / "agrpo_losses.safetensors")


def states_of_agrpo(case: str) -> tuple[Sequences, Corruption, Likelihood, Tensor]:
    """Every drawn state as a sample whose counted tokens are the two it committed, draw by draw."""
    ids = torch.cat([AGRPO["prompt_ids"], AGRPO["completion_ids"]], 1)
    scored = AGRPO[f"{case}/scored"].transpose(0, 1).flatten(0, 1) > 0
    inputs = AGRPO[f"{case}/inputs"].transpose(0, 1).flatten(0, 1)
    draws = len(scored) // 3
    whole = published_sequences(ids, every_token=True)[torch.arange(3).repeat(draws)]
    old = torch.where(scored, AGRPO_LOSSES["old_token_logps"].repeat(draws, 1), 0)
    corruption = Corruption((inputs[:, PROMPT:] == MASK)[None], scored.float()[None])
    sequences = replace(whole, completion_mask=scored)
    return sequences, corruption, Likelihood(old.sum(-1), old.sum(-1), old), AGRPO[f"{case}/steps"]


def importance_of_states(step: Tensor) -> Tensor:
    """(1/n)/q of drawn passes [sample, draw] where entropy chose them: q ∝ entropy of a pass.

    n passes, up to the last that committed anything but the end token.
    """
    committed, entropy = AGRPO["unmask_steps"], AGRPO_LOSSES["old_token_entropies"]
    last = torch.where(AGRPO["completion_ids"] == END, -1, committed).amax(-1, keepdim=True)
    sums = torch.stack([(entropy * (committed == t)).sum(-1) for t in range(8)], -1)
    sums = torch.where(torch.arange(8) <= last, sums, 0)
    return (sums.sum(-1, keepdim=True) / sums / (last + 1)).gather(1, step)


@pytest.mark.parametrize(
    "case", ["uniform_lowdisc_K4", "uniform_iid_K4", "entropy_lowdisc_K4", "uniform_lowdisc_K1"]
)
def test_agrpo(case: str, policy: Policy) -> None:
    """Σ over draws and samples of min(ρA, clip(ρ)A) / (K·G): normalization=group on K·G states.

    Where entropy chose the states, the weight that makes up for it is a factor of the advantage.
    The published loss is that of the last draw alone.
    """
    sequences, corruption, old, step = states_of_agrpo(case)
    advantage = AGRPO_LOSSES["advantages"][:, None].expand(step.shape)
    if case.startswith("entropy"):
        advantage = advantage * importance_of_states(step)
    advantage = advantage.T.reshape(1, -1)
    chosen = algorithm(estimator=Trajectory(), ratio=TOKEN, clipping=ppo, completion_length=16)
    scorer = AsSampled(policy, AGRPO["sampling_masks"] > 0)
    size = advantage.shape[1]
    batch = Batch(sequences, corruption, size, advantage, advantage.isfinite(), old)
    published = AGRPO_LOSSES[f"{case}/total_grad_final_norm"]
    assert_agrees("agrpo gradient", gradient(chosen.loss(scorer, batch).loss, policy), published)
    last = slice(size - 3, size)
    final = Batch(
        sequences[last], corruption[last], 3, advantage[:, last], advantage[:, last] < 9, old[last]
    )
    value = clipped_value(chosen, scorer, final, 0.8, 1.2) * 3 / size
    assert_agrees("agrpo loss", value, AGRPO_LOSSES[f"{case}/last_summand_loss"], atol=1e-6)


TRACERL_LOSSES = load_file(FOLDER / "tracerl_losses.safetensors")
TRACERL_CASES = sorted(name.removesuffix("/p_mask") for name in TRACERL_LOSSES if "p_mask" in name)


@dataclass(frozen=True)
class Given:
    """An estimator whose token values are known."""

    value: Tensor

    def draw(self, sequences: Sequences, size: int, generator: torch.Generator) -> Corruption:
        raise NotImplementedError

    def __call__(self, policy: Scorer, sequences: Sequences, corruption: Corruption) -> Likelihood:
        return Likelihood(self.value.sum(-1), self.value.sum(-1), self.value)


@pytest.mark.parametrize("case", TRACERL_CASES)
@pytest.mark.parametrize("divergence", [None, kl.k1, kl.k3], ids=["none", "k1", "k3"])
def test_losses_of_tracerl(
    case: str, divergence: Callable[[Tensor], Tensor] | None, policy: Policy
) -> None:
    """normalization=fixed_length on token ratios, from the recorded token log-probabilities.

    That code averages over training rows, one for every decoding state of a completion; ours, and
    the paper's formula, over completions: a factor of rows per completion.
    """
    values = {name: TRACERL_LOSSES[f"{case}/{name}"] for name in ("logp_new", "logp_old")}
    scored, source = TRACERL_LOSSES[f"{case}/p_mask"] > 0, TRACERL_LOSSES[f"{case}/source_row"]
    rows, length = scored.shape
    owned = source == torch.arange(3)[:, None]  # [completion, row]
    new, old = (
        owned.float() @ torch.where(scored, values[name], 0) for name in ("logp_new", "logp_old")
    )
    counted = owned.float() @ scored.float()
    assert counted.max() == 1  # every token is scored in one row
    row_of = owned.int().argmax(1)
    ids = TRACERL[f"R{length}/input_ids"]
    sequences = Sequences(ids[:, :6], ids[:, :6] > 0, ids[:, 6:], counted > 0)
    chosen = algorithm(
        estimator=Given(new),
        ratio=TOKEN,
        clipping=ppo,
        normalization=normalization.fixed_length,
        penalty=DivergencePenalty(0.01, divergence or kl.k3, fixed_length, "rollout"),
        completion_length=length,
    )
    before = Likelihood(old.sum(-1), old.sum(-1), old)
    batch = Batch(
        sequences,
        Corruption(counted[:0, None] > 0, counted[:0, None]),
        3,
        TRACERL_LOSSES[f"{case}/row_advantage"][row_of][None],
        torch.ones(1, 3, dtype=torch.bool),
        before,
        reference=before if divergence else None,
    )
    value = clipped_value(chosen, policy, batch, 0.8, 1.2) * 3 / rows
    name = f"loss_beta0.01_{divergence.__name__}" if divergence else "loss_beta0"
    assert_agrees("tracerl loss", value, TRACERL_LOSSES[f"{case}/{name}"], atol=1e-6)


DMPO = load_file(FOLDER / "dmpo.safetensors")


@pytest.mark.parametrize(
    ("case", "alpha", "scale"),
    [(0, 0.04, 1.0), (1, 0.04, 0.1), (2, 1.0, 0.5), (3, 0.0, 1.0), (4, 10.0, 1.0)],
)
def test_weights_of_dmpo_without_log_ratios_are_those_of_wd1(
    case: int, alpha: float, scale: float
) -> None:
    """softmax(±c·r/α), with α = 0 standing for 1. With log-ratios in the exponent an advantage
    would have to see them; ours does not.
    """
    reward = torch.tensor([[2.0, 0.3, -1.0, 0.7]])
    ours = advantages.softmax(reward, temperature=(alpha or 1.0) / scale)[0]
    published = DMPO[f"weights/{case}_zero/w_pos"] - DMPO[f"weights/{case}_zero/w_neg"]
    assert_agrees("dmpo advantage", ours, published)


CENTRED = {
    "neg_centering": DMPO["w_pos"] - DMPO["w_neg"],
    "mean_centering": DMPO["w_pos"] - DMPO["w_pos"].mean(),
    "no_centering": DMPO["w_pos"],
    "iid_masks": DMPO["w_pos"] - DMPO["w_neg"],
    "non_eos_intmask": DMPO["w_pos"] - DMPO["w_neg"],
}


@pytest.mark.parametrize("case", CENTRED)
def test_dmpo_is_reinforce_on_the_elbo_per_token(case: str, policy: Policy) -> None:
    """−Σ A·mean_K of the mean log p over masked tokens: uniform weights, ratio per token, sum.

    A: the recorded weights with the centring of the case. Every position counts in that code; what
    its option to leave out those after the end token made of the masks is taken as recorded.
    """
    hidden = DMPO[f"{case}/perturbed"].view(4, 4, -1)[..., PROMPT:] == MASK
    sequences = published_sequences(DMPO["input_ids"], every_token=True)
    estimator = Elbo(draws=4, masking=lambda *_: (hidden, None))
    chosen = algorithm(
        estimator=estimator,
        ratio=PER_TOKEN,
        clipping=clipping.uniform,
        normalization=normalization.unnormalized,
        completion_length=16,
    )
    batch = Batch(
        sequences,
        estimator.draw(sequences, 4, keyed("any")),
        4,
        CENTRED[case][None],
        torch.ones(1, 4, dtype=torch.bool),
        Likelihood(torch.zeros(4), torch.zeros(4)),
    )
    loss = chosen.loss(policy, batch).loss
    assert_agrees("dmpo loss", loss, DMPO[f"{case}/loss"], atol=1e-6)
    assert_agrees("dmpo gradient", gradient(loss, policy), DMPO[f"{case}/grad_final_norm"])
