"""Whole objectives from our parts against the losses and gradients of d1, ESPO, GDPO, DiffuCoder.

Everything runs on the published tiny LLaDA, ESPO and DiffuCoder on the tiny Dream too, from the
recorded masks: estimator, ratio level, clipping, normalization, penalty. Gradients are with respect
to the final norm's weight, the only one recorded. A published loss of clipped ratios has our
gradient and another value, which `published.Clip` puts together from the same parts; old and
reference likelihoods come from perturbed policies and are recorded numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stabledrl.algorithm import Algorithm
from stabledrl.estimators.coupled import Coupled
from stabledrl.estimators.coupled_token import CoupledToken, three_inputs
from stabledrl.estimators.mean_field import MeanField
from stabledrl.estimators.quadrature import Quadrature
from stabledrl.functional import advantage, kl, normalization
from stabledrl.functional.quadrature import gauss_legendre, node_rate, quadrature_weight
from stabledrl.functional.strata import both_sides, mean_weight
from stabledrl.models import dream
from stabledrl.penalty import DivergencePenalty, divided, pooled, sequence
from stabledrl.policy import Policy
from stabledrl.types import Batch, Corruption
from tests.phases import PER_TOKEN, TOKEN, algorithm
from tests.published import (
    MASK,
    PROMPT,
    Clip,
    assert_agrees,
    assert_gradient,
    group_of_four,
    mean_field_corruption,
    published_sequences,
)

FOLDER = Path(__file__).parent.parent / "golden"


@pytest.fixture(scope="module")
def shifted() -> Policy:
    """The published tiny Dream."""
    return dream.load(str(FOLDER / "dream"), chat_template=False)


ESPO = load_file(FOLDER / "espo.safetensors")
# case, iteration, clip, β, old values
ESPO_CASES = [
    ("eps0.2_beta0.01", 0, Clip(0.2, 0.2), 0.01, "old"),
    ("eps0.0004_beta0.01", 0, Clip(4e-4, 4e-4), 0.01, "old"),
    ("eps0.2_beta0", 0, Clip(0.2, 0.2), 0.0, "old_wild"),
    ("eps0.2_0.3_beta0.01_wild_it1", 1, Clip(0.2, 0.3), 0.01, "old_wild"),
]


def espo(model: str, iteration: int, clip: Clip, beta: float, old: str) -> tuple[Algorithm, Batch]:
    """Ratio per token, mean over the group, β·k2/L; every position counts, as in that code."""
    sequences = published_sequences(ESPO["input_ids"], every_token=True)
    hidden = ESPO[f"{model}/perturbed"][iteration, ..., PROMPT:] == MASK
    scored = both_sides(hidden, sequences.completion_mask)
    corruption = Corruption(scored, mean_weight(scored, sequences.length + 1))
    batch = group_of_four(
        sequences,
        corruption,
        ESPO["advantages_loo"],
        ESPO[f"{model}/elbo_{old}"][:, iteration],
        ESPO[f"{model}/elbo_ref"][:, iteration] if beta else None,
    )
    chosen = algorithm(
        estimator=Coupled(draws=2),
        ratio=PER_TOKEN,
        clipping=clip.rule,
        normalization=normalization.group,
        penalty=DivergencePenalty(beta, kl.k2, divided),
        completion_length=16,
    )
    return chosen, batch


@pytest.mark.parametrize("model", ["llada", "dream"])
@pytest.mark.parametrize(("case", "iteration", "clip", "beta", "old"), ESPO_CASES)
def test_espo(
    model: str,
    case: str,
    iteration: int,
    clip: Clip,
    beta: float,
    old: str,
    policy: Policy,
    shifted: Policy,
) -> None:
    """We follow the paper in the masks' sizes (rounded down) and in what counts (no end fill).

    From the recorded masks, with every position counted, the objective is that of the code.
    """
    chosen, batch = espo(model, iteration, clip, beta, old)
    scorer = shifted if model == "dream" else policy
    value = chosen.estimator(scorer, batch.sequences, batch.corruption).value
    assert_agrees("espo value", value, ESPO[f"{model}/elbo_new"][:, iteration])
    expected = ESPO[f"{model}/loss/{case}/loss"]
    assert_agrees("espo loss", clip.value(chosen, scorer, batch), expected, atol=1e-6)
    output = chosen.loss(scorer, batch)
    assert_gradient("espo", output, scorer, ESPO[f"{model}/loss/{case}/grad_final_norm"])


def test_advantages_of_espo() -> None:
    assert_agrees("espo advantage", advantage.leave_one_out(ESPO["rewards"][None])[0],
                  ESPO["advantages_loo"])  # fmt: skip


GDPO = load_file(FOLDER / "gdpo.safetensors")
GDPO_CASES = json.loads((FOLDER / "gdpo.json").read_text())["loss_cases"]


@pytest.mark.parametrize("case", GDPO_CASES, ids=[case["key"] for case in GDPO_CASES])
def test_gdpo(case: dict[str, float], policy: Policy) -> None:
    """The code divides by the node, and so does estimator=quadrature_node; the formula (and
    estimator=quadrature) divides by the rate that ⌊t·L⌋ masked tokens are.

    Ratio per token, mean over the group, β·k3 of the whole completion.
    """
    key, beta, clip = str(case["key"]), case["beta"], Clip(case["epsilon"], case["epsilon"])
    sequences = published_sequences(GDPO["input_ids"], every_token=True)
    hidden = GDPO[f"{key}/perturbed"][..., PROMPT:] == MASK
    node, node_weight = gauss_legendre(len(hidden))
    count, rate = node_rate(node, sequences.length)
    # the three nodes of that code are ours in the same order
    assert torch.equal(hidden.sum(-1), count)
    batch = group_of_four(
        sequences,
        Corruption(hidden, quadrature_weight(hidden, node_weight, rate)),
        GDPO["advantages"],
        GDPO[f"{key}/elbo_old"],
        GDPO[f"{key}/elbo_ref"] if beta else None,
    )
    chosen = algorithm(
        estimator=Quadrature(nodes=len(node), divide_by=node_rate),
        ratio=PER_TOKEN,
        clipping=clip.rule,
        normalization=normalization.group,
        penalty=DivergencePenalty(beta, kl.k3, sequence),
        completion_length=16,
    )
    value = chosen.estimator(policy, sequences, batch.corruption).value
    assert_agrees("gdpo value", value, GDPO[f"{key}/elbo_new"])
    expected = GDPO[f"{key}/loss"]
    assert_agrees("gdpo loss", clip.value(chosen, policy, batch), expected, atol=1e-6)
    output = chosen.loss(policy, batch)
    assert_gradient("gdpo", output, policy, GDPO[f"{key}/grad_final_norm"])


def test_advantages_of_gdpo() -> None:
    assert_agrees("gdpo advantage", advantage.standardized(GDPO["rewards"][None])[0],
                  GDPO["advantages"])  # fmt: skip


COUPLED = load_file(FOLDER / "coupled_grpo.safetensors")


def coupled_grpo(
    model: str, iteration: int, clip: Clip, penalty: DivergencePenalty
) -> tuple[Algorithm, Batch]:
    """Ratios of tokens, mean over all tokens of the batch up to the first end token.

    That code hides what comes after the end token like everything else, we always hide it: here it
    is as recorded.
    """
    sequences = published_sequences(COUPLED["input_ids"])
    counted = sequences.completion_mask
    assert torch.equal(counted, COUPLED["completion_mask"] > 0)
    hidden = COUPLED[f"{model}/part_mask"][iteration, :, PROMPT:] > 0
    weight = three_inputs(hidden, counted, 1 / float(COUPLED[f"{model}/weights"][iteration, 1]))
    inputs = COUPLED[f"{model}/perturbed"][iteration, ..., PROMPT:] == MASK
    batch = group_of_four(
        sequences,
        Corruption(inputs, weight.weight),
        COUPLED["advantages"],
        COUPLED[f"{model}/logp_old"][:, iteration],
        COUPLED[f"{model}/logp_ref"][:, iteration] if penalty.coefficient else None,
    )
    chosen = algorithm(
        estimator=CoupledToken(),
        ratio=TOKEN,
        clipping=clip.rule,
        normalization=normalization.token,
        penalty=penalty,
        completion_length=16,
    )
    return chosen, batch


COUPLED_CASES = [
    ("eps0.5_beta0.01", 0, Clip(0.5, 0.5), DivergencePenalty(0.01, kl.k3, pooled)),
    ("eps0.2_beta0", 1, Clip(0.2, 0.2), DivergencePenalty()),
]


@pytest.mark.parametrize("name", ["llada_noshift", "dream"])
@pytest.mark.parametrize(("case", "iteration", "clip", "penalty"), COUPLED_CASES)
def test_coupled_grpo(
    name: str,
    case: str,
    iteration: int,
    clip: Clip,
    penalty: DivergencePenalty,
    policy: Policy,
    shifted: Policy,
) -> None:
    """The code's weights, by which a token value counts 3/2 of a log-probability in the mean."""
    scorer = shifted if name == "dream" else policy
    chosen, batch = coupled_grpo(name, iteration, clip, penalty)
    counted = batch.sequences.completion_mask
    value = chosen.estimator(scorer, batch.sequences, batch.corruption).token_value
    assert value is not None
    recorded = torch.where(counted, COUPLED[f"{name}/logp_new"][:, iteration], 0)
    assert_agrees("coupled_grpo value", value, recorded)
    expected = COUPLED[f"{name}/loss/{case}/loss"]
    assert_agrees("coupled_grpo loss", clip.value(chosen, scorer, batch), expected, atol=1e-6)
    output = chosen.loss(scorer, batch)
    published = COUPLED[f"{name}/loss/{case}/grad_final_norm"]
    assert_gradient("coupled_grpo", output, scorer, published)


D1 = load_file(FOLDER / "d1.safetensors")
D1_CASES = [
    ("mu2_beta0.04_eps0.5", 1, Clip(0.5, 0.5), 0.04, "logp_old"),
    ("mu2_beta0_eps0.5", 1, Clip(0.5, 0.5), 0.0, "logp_old"),
    ("mu2_beta0.04_eps0.2_wild", 1, Clip(0.2, 0.2), 0.04, "logp_old_wild"),
    ("mu2_beta0_eps0.2_wild", 1, Clip(0.2, 0.2), 0.0, "logp_old_wild"),
    ("mu1_beta0", 0, Clip(0.5, 0.5), 0.0, "logp_new"),  # the ratio is 1 identically
]


@pytest.mark.parametrize(("case", "iteration", "clip", "beta", "old"), D1_CASES)
def test_d1(case: str, iteration: int, clip: Clip, beta: float, old: str, policy: Policy) -> None:
    """Ratios of tokens, mean over all tokens of the batch, β·k3 over all of them as well."""
    sequences = published_sequences(D1["input_ids"])
    counted = sequences.completion_mask
    assert torch.equal(counted, D1["completion_mask"] > 0)
    batch = group_of_four(
        sequences,
        mean_field_corruption(sequences, D1["perturbed"][iteration]),
        D1["advantages"],
        D1[old][iteration],
        D1["logp_ref"][iteration] if beta else None,
    )
    chosen = algorithm(
        estimator=MeanField(),
        ratio=TOKEN,
        clipping=clip.rule,
        normalization=normalization.token,
        penalty=DivergencePenalty(beta, kl.k3, pooled),
        completion_length=16,
    )
    value = chosen.estimator(policy, sequences, batch.corruption).token_value
    assert value is not None
    assert_agrees("d1 value", value, torch.where(counted, D1["logp_new"][iteration], 0))
    expected = D1[f"loss/{case}/loss"]
    assert_agrees("d1 loss", clip.value(chosen, policy, batch), expected, atol=1e-6)
    published = D1[f"loss/{case}/grad_final_norm"]
    assert_gradient("d1", chosen.loss(policy, batch), policy, published)
