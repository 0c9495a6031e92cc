"""Agreement with StableDRL's released code, from its masks, on numbers and on the tiny LLaDA.

Its file also holds masks of kinds that we have not (`block_all`, `all`): their scores are compared
like all others. Departures of that code from the formulas, and whom we follow:
- weights are capped from above only (w = min(ρ, 5)): the code, by clipping=unconditional_released;
- the prompt's padding is perturbed along with the prompt: the formula, padding is never hidden;
- without importance weights (`none`) its loss is a mean over tokens: the code, which is
  clipping=uniform with normalization=length_weighted.
The estimate `zero` (no score at all for A ≤ 0) is none of ours: the objective's golden test has it.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from stabledrl.algorithm import Algorithm
from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.sandwich import Sandwich
from stabledrl.functional import clipping, normalization
from stabledrl.functional.masking import block_random, counted_tokens
from stabledrl.policy import Policy
from stabledrl.types import Batch, Corruption, Likelihood, Sequences
from tests.phases import PER_TOKEN, algorithm
from tests.published import END, MASK, PROMPT, assert_agrees

FOLDER = Path(__file__).parent.parent / "golden"
GOLDEN = load_file(FOLDER / "stabledrl.safetensors")
FACTS = json.loads((FOLDER / "stabledrl.json").read_text())
LENGTHS = torch.tensor([10, 16, 1, 5])
CASES = FACTS["logp_cases"]
LOSSES = [case for case in FACTS["loss_cases"] if case["estimate_for_nonpositive"] != "zero"]
# weight of the upper bound where A ≤ 0
WEIGHTS = {"elbo": 0.0, "eubo": 1.0, "mix": 0.5}


def key(case: dict[str, str]) -> str:
    return case["key"]


def sequences_of(case: str) -> Sequences:
    padded = "_leftpad" * case.endswith("leftpad")
    ids = GOLDEN[f"input_ids{padded}"]
    completion = ids[:, PROMPT:]
    counted = counted_tokens(completion, (END,))
    assert torch.equal(counted, GOLDEN["completion_mask"].bool())
    assert torch.equal(counted.sum(-1), LENGTHS)
    return Sequences(ids[:, :PROMPT], GOLDEN[f"prompt_mask{padded}"].bool(), completion, counted)


def masks_of(case: str) -> tuple[Tensor, Tensor]:
    """Hidden tokens of completion and prompt, [draw, sample, position]."""
    hidden = (GOLDEN[f"{case}/perturbed"] == MASK).transpose(0, 1)
    return hidden[..., PROMPT:], hidden[..., :PROMPT]


class Recorded:
    """Token log-probabilities of a case, for the very inputs that were recorded with them."""

    def __init__(self, case: str) -> None:
        self.inputs = GOLDEN[f"{case}/perturbed"].transpose(0, 1)
        self.value = GOLDEN[f"{case}/token_logp"].transpose(0, 1)

    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Tensor:
        assert prompt_mask is not None
        prompt = sequences.prompt_ids.masked_fill(prompt_mask, MASK)
        completion = sequences.completion_ids.masked_fill(mask, MASK)
        assert torch.equal(torch.cat([prompt, completion], -1), self.inputs)
        return torch.where(mask & sequences.completion_mask, self.value, 0)


def estimators(case: str, **settings: float) -> tuple[Sandwich, Corruption]:
    """The sandwich on the recorded masks, which `draw` turns into weights."""
    mask, prompt_mask = masks_of(case)
    estimator = Sandwich(draws=len(mask), masking=lambda *_: (mask, prompt_mask), **settings)  # type: ignore[arg-type]
    return estimator, estimator.draw(sequences_of(case), 4, torch.Generator())


def assert_per_token(value: Tensor | None, expected: Tensor) -> None:
    """Ours is in nats per completion, theirs per token."""
    assert value is not None
    assert_agrees("stabledrl value", value / LENGTHS, expected)


@pytest.mark.parametrize("case", [case["key"] for case in CASES])
def test_scores(case: str) -> None:
    sequences = sequences_of(case)
    for name, weight in WEIGHTS.items():
        estimator, corruption = estimators(case, upper_bound_weight=weight)
        likelihood = estimator(Recorded(case), sequences, corruption)
        assert_per_token(likelihood.value, GOLDEN[f"{case}/elbo"])
        assert_per_token(likelihood.score, GOLDEN[f"{case}/{name}_pos"])
        assert_per_token(likelihood.negative_score, GOLDEN[f"{case}/{name}_neg"])
    elbo = Elbo(draws=estimator.draws, masking=estimator.masking)
    value = elbo(Recorded(case), sequences, elbo.draw(sequences, 4, torch.Generator())).value
    assert_per_token(value, GOLDEN[f"{case}/elbo"])


# With settings in the name the recorded estimate is the named one, mixed with that weight or not.
OTHERS = [
    (case["key"], estimate, beta, weight)
    for case in CASES
    for estimate in ("eubo", "mix")
    for beta, weight in ((1.0, 0.5), (2.0, 0.25))
    if f"{case['key']}/{estimate}_neg_beta{beta}_w{weight}" in GOLDEN
]


@pytest.mark.parametrize(("case", "estimate", "beta", "weight"), OTHERS)
def test_scores_with_other_settings(case: str, estimate: str, beta: float, weight: float) -> None:
    share = weight if estimate == "mix" else 1.0
    estimator, corruption = estimators(case, beta=beta, upper_bound_weight=share)
    likelihood = estimator(Recorded(case), sequences_of(case), corruption)
    expected = GOLDEN[f"{case}/{estimate}_neg_beta{beta}_w{weight}"]
    assert_per_token(likelihood.negative_score, expected)


def objective(case: dict[str, object]) -> tuple[Algorithm, Batch]:
    """The released code's objective from our parts, on the masks of a case."""
    name = str(case["key"])
    estimator, corruption = estimators(
        name, upper_bound_weight=WEIGHTS[str(case["estimate_for_nonpositive"])]
    )
    rules: dict[str, object] = {
        "clipping": partial(clipping.unconditional, epsilon=4.0),  # unconditional_released
        "normalization": normalization.self_normalized,
    }
    if not case["use_snis"]:
        rules = {"clipping": clipping.uniform, "normalization": normalization.length_weighted}
    old = LENGTHS * GOLDEN.get(f"{name}/ref_elbo", torch.zeros(4))
    batch = Batch(
        sequences=sequences_of(name),
        corruption=corruption,
        group_size=4,
        advantage=GOLDEN[f"{name}/advantages"][None],
        verdict=torch.ones(1, 4, dtype=torch.bool),
        old=Likelihood(old, old),
    )
    return algorithm(estimator=estimator, ratio=PER_TOKEN, **rules), batch


@pytest.mark.parametrize("case", LOSSES, ids=key)
def test_losses(case: dict[str, object]) -> None:
    chosen, batch = objective(case)
    output = chosen.loss(Recorded(str(case["key"])), batch)
    assert_agrees("stabledrl loss", output.loss, torch.tensor(case["loss"]), atol=1e-6)
    if case["ref"] != "none":  # what the code reports of its ratios, before any cap
        for ours, theirs in (("max", "iw_max"), ("mean", "iw_mean")):
            reported = float(output.metrics[f"train/ratio/{ours}"])
            assert reported == pytest.approx(case[theirs], rel=1e-5)


@pytest.mark.parametrize("case", LOSSES, ids=key)
def test_gradients_on_the_published_model(case: dict[str, object], policy: Policy) -> None:
    """Loss and gradient from the model's own log-probabilities instead of the recorded ones."""
    chosen, batch = objective(case)
    loss = chosen.loss(policy, batch).loss
    assert_agrees("stabledrl loss", loss, torch.tensor(case["loss"]), atol=1e-6)
    native = policy.backbone.model
    weights = [native.norm.weight, native.layers[0].input_layernorm.weight]
    names = ("grad_final_norm", "grad_block0_attn_norm")
    for found, name in zip(torch.autograd.grad(loss, weights), names, strict=True):
        published = GOLDEN[f"{case['key']}/{name}"]
        assert_agrees("stabledrl gradient", found, published)


@pytest.mark.parametrize("case", [case["key"] for case in CASES if not case["left_padded_prompt"]])
@torch.no_grad()
def test_scores_of_the_published_model(case: str, policy: Policy) -> None:
    """With padding on the left that code shows it to the model, and perturbs it: not ours."""
    estimator, corruption = estimators(case, upper_bound_weight=0.5)
    likelihood = estimator(policy, sequences_of(case), corruption)
    assert_per_token(likelihood.value, GOLDEN[f"{case}/elbo"])
    assert_per_token(likelihood.negative_score, GOLDEN[f"{case}/mix_neg"])


BLOCKS = [case for case in CASES if case["forward_type"] == "block_random"]


@pytest.mark.parametrize("case", BLOCKS, ids=key)
def test_recorded_masks_are_ones_that_block_random_draws(case: dict[str, object]) -> None:
    # For each recorded mask there is a block as ours: from it on all is hidden but fewer than all
    # of its counted tokens, before it nothing where nothing is perturbed.
    name, size = str(case["key"]), int(str(case["block_length"]))
    mask, prompt_mask = masks_of(name)
    end = GOLDEN[f"{name}/block_mask"].transpose(0, 1)[..., PROMPT:].sum(-1)  # of the chosen block
    position = torch.arange(16)
    before, inside, after = (
        position < end[..., None] - size,
        (position >= end[..., None] - size) & (position < end[..., None]),
        position >= end[..., None],
    )
    counted = sequences_of(name).completion_mask
    assert (mask | counted).all()
    assert mask[after].all()
    assert (inside & counted).any(-1).all()  # a block with counted tokens
    assert (mask & inside & counted).any(-1).all()  # of which at least one is hidden
    if not case["p_mask_prompt"]:
        assert not mask[before & counted].any()
        assert not prompt_mask.any()


def test_every_recorded_mask_of_a_small_case_comes_up_in_our_draws() -> None:
    # Without perturbation a mask of L = 5 in blocks of 4 is one of 16: any 1 to 4 of the first
    # block with all that follows, or the fifth token alone; the rarest has 1/2·1/4·1/6 = 1/48.
    sequences = sequences_of("block_random_b4_t2_p0.0")
    mask, _ = block_random(
        sequences.completion_mask,
        sequences.prompt_mask,
        2_000,
        torch.Generator().manual_seed(0),
        block_length=4,
        perturbation=0.0,
    )
    ours = {tuple(row) for row in mask[:, 3].int().tolist()}
    assert len(ours) == 16
    for case in ("block_random_b4_t1_p0.0", "block_random_b4_t2_p0.0"):
        recorded, _ = masks_of(case)
        assert {tuple(row) for row in recorded[:, 3].int().tolist()} <= ours
