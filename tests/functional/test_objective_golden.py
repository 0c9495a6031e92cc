"""Agreement with published code: gradients recorded from verl, TRL and StableDRL.

Not compared, because our form differs on purpose: verl's grid at and beyond its clamp of ±20 (no
gradient there; ours keeps the clamped weight), k3 outside verl's value clamp of ±10. verl's CISPO
has a lower bound of 0.8, which none of our clippings has beside 1+ε = 5 (nor has TRL's CISPO): on
the grid it is compared above that bound, on the sequences it is a clipping of one's own.
PPO's loss −min(ρA, …) has our gradient and another value than −Σ c·A·ℓ: what is dropped adds the
bound that it went over, what is kept −c·A.
"""

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stabledrl.functional import advantage as advantages
from stabledrl.functional import clipping, kl, normalization, ratio
from stabledrl.functional.objective import policy_loss
from stabledrl.functional.reduce import masked_mean, masked_sum
from tests.published import assert_agrees

FOLDER = Path(__file__).parent.parent / "golden"
GOLDEN = load_file(FOLDER / "objectives.safetensors")
FACTS = json.loads((FOLDER / "objectives.json").read_text())

ppo = partial(clipping.dual, epsilon_low=0.2, epsilon_high=0.2, cap=3.0)
dapo = partial(clipping.dual, epsilon_low=0.2, epsilon_high=0.28, cap=10.0)
trl = partial(clipping.conditional, epsilon_low=0.2, epsilon_high=0.28)
trl_delta = partial(clipping.dual, epsilon_low=0.2, epsilon_high=0.28, cap=2.0)
gspo = partial(clipping.conditional, epsilon_low=3e-4, epsilon_high=4e-4)
cap_five = partial(clipping.unconditional, epsilon=4.0)

GRID = [
    ("ppo_eps0.2_dual3", ppo),
    ("ppo_eps0.2_dual1e9", partial(clipping.conditional, epsilon_low=0.2, epsilon_high=0.2)),
    ("dapo_low0.2_high0.28_dual10", dapo),
    ("ppo_eps0.5_dual3", partial(clipping.dual, epsilon_low=0.5, epsilon_high=0.5, cap=3.0)),
    ("gspo_low3e-4_high4e-4", gspo),
    ("cispo_low0.2_high4", cap_five),
]


@pytest.mark.parametrize(
    ("case", "clip"), GRID, ids=lambda value: value if isinstance(value, str) else ""
)
def test_one_token_grid_of_verl(case, clip, coefficient):
    grid, advantage = GOLDEN["log_ratio"], GOLDEN["advantage"]
    lower = -0.2 if "cispo" in case else -20
    upper = 10 if "gspo" in case else 20
    inside = (grid > lower) & (grid < upper)
    pairs = torch.cartesian_prod(grid[inside], advantage)
    old = torch.full((len(pairs), 1), FACTS["old_logp"])
    policy = (old + pairs[:, :1]).requires_grad_()  # every pair is a group of its own
    length = torch.ones(len(pairs), 1, dtype=torch.long)
    d = ratio.sequence_log_ratio(policy, old, length)
    c = coefficient(clip, normalization.group, d, pairs[:, 1:])
    score = ratio.sequence_score(policy, length)
    loss = policy_loss(score, pairs[:, 1:], c) * len(pairs)
    loss.backward()
    expected = GOLDEN[f"{case}/grad"][inside].flatten()
    assert inside.sum() >= 10
    torch.testing.assert_close(policy.grad.flatten(), expected, rtol=1e-5, atol=1e-8)
    _, keep = clip(d, pairs[:, 1:])
    kept = keep.flatten()
    published = GOLDEN[f"{case}/value"][inside].flatten()
    assert kept.sum() >= 10 * 2
    if "cispo" not in case:
        surrogate = -(c.flatten() * pairs[:, 1])
        torch.testing.assert_close(surrogate[kept], published[kept], rtol=1e-5, atol=1e-8)
    if "cispo" in case:
        value = -(c * pairs[:, 1:, None] * score.detach()).flatten()
        torch.testing.assert_close(value, published, rtol=1e-5, atol=1e-8)


# case, ratio level, clipping, normalization, factor: verl's sum-norm divides by the length 16 but
# not by the 4 sequences, so it is 4 times Dr.GRPO's mean.
TOKEN, PER_TOKEN, MIXED = (
    (ratio.token_log_ratio, ratio.token_score),
    (ratio.per_token_log_ratio, ratio.per_token_score),
    (ratio.per_token_log_ratio, ratio.sequence_score),
)
SEQUENCES = [
    *(
        (f"seq/{name}/{mode}", TOKEN, clip, norm, factor)
        for name, clip in (("ppo_eps0.2_dual3", ppo), ("dapo_low0.2_high0.28_dual10", dapo))
        for mode, norm, factor in (
            ("token-mean", normalization.token, 1),
            ("seq-mean-token-sum", normalization.group, 1),
            ("seq-mean-token-mean", normalization.sequence_token_mean, 1),
            ("seq-mean-token-sum-norm", normalization.fixed_length, 4),
        )
    ),
    *(
        (f"trl/{name}_token_beta0.0_delta{delta}", TOKEN, clip, norm, 1)
        for name, norm in (
            ("grpo", normalization.sequence_token_mean),
            ("bnpo", normalization.token),
            ("dr_grpo", normalization.fixed_length),
            ("dapo", normalization.token),
        )
        for delta, clip in (("None", trl), ("2.0", trl_delta))
    ),
    # a sequence ratio on the mean log-ratio: the score is per token too
    *(
        (f"trl/{name}_sequence_beta0.0_delta{delta}", PER_TOKEN, clip, norm, 1)
        for name, norm in (
            ("grpo", normalization.group),
            ("bnpo", normalization.length_weighted),
            ("dapo", normalization.length_weighted),
        )
        for delta, clip in (("None", trl), ("2.0", trl_delta))
    ),
    # Dr.GRPO multiplies that ratio with a sum over tokens
    *(
        (f"trl/dr_grpo_sequence_beta0.0_delta{delta}", MIXED, clip, normalization.fixed_length, 1)
        for delta, clip in (("None", trl), ("2.0", trl_delta))
    ),
    ("trl/cispo_token_beta0.0_deltaNone", TOKEN, cap_five, normalization.token, 1),
    (
        "trl/cispo_sequence_beta0.0_deltaNone",
        PER_TOKEN,
        cap_five,
        normalization.length_weighted,
        1,
    ),
    # gspo's code takes the mean of sequences of the mean of tokens whatever is asked for
    *(
        (f"seq/gspo_low3e-4_high4e-4/{mode}", PER_TOKEN, gspo, normalization.group, 1)
        for mode in (
            "token-mean",
            "seq-mean-token-sum",
            "seq-mean-token-mean",
            "seq-mean-token-sum-norm",
        )
    ),
]


@pytest.mark.parametrize("shape", [(1, 4), (2, 2), (4, 1)], ids=str)
@pytest.mark.parametrize(
    ("case", "level", "clip", "norm", "factor"), SEQUENCES, ids=[row[0] for row in SEQUENCES]
)
def test_sequences_of_verl_and_trl(case, level, clip, norm, factor, shape, coefficient):
    """The same however the four rows are grouped: Z of the whole step undoes the 1/N outside."""
    leaf = GOLDEN["seq/logp"].clone().requires_grad_()
    tokens = (*shape, 16)
    counted = GOLDEN["seq/mask"].bool().reshape(tokens)
    policy, old = leaf.reshape(tokens), GOLDEN["seq/old_logp"].reshape(tokens)
    advantage = GOLDEN["seq/advantage"][:, 0].reshape(shape)
    length = counted.sum(-1)
    mask = counted
    log_ratio, score = level
    if level != TOKEN:
        policy, old = masked_sum(policy, counted, -1), masked_sum(old, counted, -1)
        mask = torch.ones(*shape, 1, dtype=torch.bool)
    d = log_ratio(policy, old, length)
    c = coefficient(clip, norm, d, advantage, mask, length, 16)
    loss = policy_loss(score(policy, length), advantage, c)
    loss.backward()
    expected = GOLDEN[f"{case}/grad"]
    torch.testing.assert_close(leaf.grad * factor, expected, rtol=1e-5, atol=1e-7)
    peer = "trl" if case.startswith("trl") else "verl"
    assert_agrees(f"{peer} gradient", leaf.grad * factor, expected)
    value = loss
    if "cispo" not in case:
        bound = beyond(clip.keywords, d, advantage)
        _, keep = clip(d, advantage)
        weight = norm(torch.where(keep, d, bound), mask, length, 16)
        # how often a unit counts: a token once, a completion as its score counts its tokens
        times = torch.ones_like(d) if level == TOKEN else score(length.float(), length)
        value = policy_loss(times, advantage, weight)
    assert_agrees(f"{peer} loss", value * factor, GOLDEN[f"{case}/loss"], atol=1e-6)


def beyond(bounds, log_ratio, advantage):
    """The logarithm of the bound that a dropped log-ratio went over."""
    low, high = math.log(1 - bounds["epsilon_low"]), math.log(1 + bounds["epsilon_high"])
    cap = math.log(bounds.get("cap", 1 + bounds["epsilon_high"]))
    above = torch.where(advantage[..., None] < 0, cap, high)
    return torch.where(log_ratio < 0, low, above)


CISPO = load_file(FOLDER / "objectives_cispo.safetensors")


@pytest.mark.parametrize(
    ("mode", "norm", "factor"),
    [
        ("token-mean", normalization.token, 1),
        ("seq-mean-token-sum", normalization.group, 1),
        ("seq-mean-token-mean", normalization.sequence_token_mean, 1),
        ("seq-mean-token-sum-norm", normalization.fixed_length, 4),
    ],
)
def test_cispo_of_verl_is_a_clipping_of_ones_own(mode, norm, factor, coefficient):
    def clip(log_ratio, advantage):
        kept = torch.ones_like(log_ratio, dtype=torch.bool)
        return log_ratio.clamp(math.log(0.8), math.log(5)), kept

    policy = GOLDEN["seq/logp"][None].clone().requires_grad_()
    counted = GOLDEN["seq/mask"].bool()[None]
    advantage, length = GOLDEN["seq/advantage"][None, :, 0], counted.sum(-1)
    d = ratio.token_log_ratio(policy, GOLDEN["seq/old_logp"][None], length)
    assert ((d < math.log(0.8)) & counted).any()
    c = coefficient(clip, norm, d, advantage, counted, length, 16)
    loss = policy_loss(ratio.token_score(policy, length), advantage, c) * factor
    case = f"seq/cispo_low0.2_high4/{mode}"
    torch.testing.assert_close(loss.detach(), CISPO[f"{case}/loss"], rtol=1e-5, atol=1e-6)
    loss.backward()
    expected = CISPO[f"{case}/grad"]
    torch.testing.assert_close(policy.grad[0], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo"])
def test_k3_of_trl(name, level):
    """Per token at either level of the ratio; each loss averages it as it does its surrogate."""
    policy = GOLDEN["seq/logp"].clone().requires_grad_()
    counted = GOLDEN["seq/mask"].bool()
    divergence = kl.k3(GOLDEN["trl/ref_logp"] - policy)
    mean = masked_mean(divergence, counted)
    # kl.level=pooled; the level `token` averages each completion first
    if name == "grpo":
        mean = masked_mean(divergence, counted, -1).mean()
    if name == "dr_grpo":
        mean = masked_sum(divergence, counted) / counted.numel()
    (gradient,) = torch.autograd.grad(0.04 * mean, policy)
    with_kl, without = (f"trl/{name}_{level}_beta{beta}_deltaNone" for beta in ("0.04", "0.0"))
    whole = GOLDEN[f"{without}/grad"] + gradient
    torch.testing.assert_close(whole, GOLDEN[f"{with_kl}/grad"], rtol=1e-5, atol=1e-7)
    difference = GOLDEN[f"{with_kl}/grad"] - GOLDEN[f"{without}/grad"]
    torch.testing.assert_close(gradient, difference, rtol=1e-4, atol=1e-7)
    whole = GOLDEN[f"{without}/loss"] + 0.04 * mean.detach()
    torch.testing.assert_close(whole, GOLDEN[f"{with_kl}/loss"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", [kl.k1, kl.k2, kl.k3], ids=lambda value: value.__name__)
def test_divergences_of_verl(function):
    facts = FACTS["kl_penalty"]
    grid = torch.tensor(facts["logp_minus_ref"])
    expected = torch.tensor(facts[function.__name__]["value"])
    # verl subtracts log-probabilities near −7 in float32 (4e-7 of noise), and k3 cancels in it
    inside = expected.abs() < 10 if function is kl.k3 else torch.ones_like(grid, dtype=torch.bool)
    delta = (-grid).requires_grad_()
    value = function(delta)
    value.sum().backward()
    torch.testing.assert_close(value.detach()[inside], expected[inside], rtol=1e-4, atol=2e-7)
    if function is not kl.k1:
        slope = -delta.grad  # with respect to the policy's log-probability
        expected = torch.tensor(facts[function.__name__]["grad"])
        torch.testing.assert_close(slope[inside], expected[inside], rtol=1e-4, atol=2e-7)


def test_advantages_of_verl():
    facts = FACTS["advantages"]
    reward = torch.tensor(facts["rewards"]).reshape(2, 3)
    for function, name in (
        (partial(advantages.standardized, epsilon=1e-6), "grpo_std"),
        (advantages.centered, "grpo_nostd"),
        (advantages.leave_one_out, "rloo"),
    ):
        expected = torch.tensor(facts[name]).reshape(2, 3)
        torch.testing.assert_close(function(reward), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["elbo", "zero"])
def test_loss_of_stabledrl_released_code(case, coefficient):
    """Softmax over the group of min(d, log 5), times advantage and score.

    Score: the ELBO, or with `zero` only that of positive advantages.
    """
    advantage = GOLDEN[f"stabledrl/graded_offset_{case}/advantages"].unsqueeze(0)
    old = GOLDEN[f"stabledrl/graded_offset_{case}/ref_elbo"].unsqueeze(0)
    value = old + torch.tensor([2.3, -0.7, 0.05, 1.0])  # how the recording made `old`
    score = torch.where(advantage > 0, value, 0) if case == "zero" else value
    length = torch.ones(1, 4, dtype=torch.long)
    d = ratio.sequence_log_ratio(value, old, length)
    c = coefficient(cap_five, normalization.self_normalized, d, advantage)
    loss = policy_loss(ratio.sequence_score(score, length), advantage, c)
    torch.testing.assert_close(loss, GOLDEN[f"stabledrl/graded_offset_{case}/loss"])
