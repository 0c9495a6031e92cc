"""Every proxy against full enumeration, and against models whose likelihood is known."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

from stabledrl.estimators.coupled import Coupled
from stabledrl.estimators.coupled_token import CoupledToken
from stabledrl.estimators.elbo import Elbo
from stabledrl.estimators.exact import Exact
from stabledrl.estimators.mean_field import MeanField
from stabledrl.estimators.quadrature import Quadrature
from stabledrl.estimators.sandwich import Sandwich
from stabledrl.estimators.stratified import Stratified
from stabledrl.functional.enumeration import (
    all_subsets,
    order_averaged_elbo,
    random_order_log_likelihood,
)
from stabledrl.functional.masking import block_random, counted_tokens
from stabledrl.policy import Policy
from stabledrl.types import Corruption, Estimator, Sequences
from tests.policies import (
    END,
    LLADA,
    MASK,
    copy_oracle,
    golden_llada,
    left_padded,
    tiny_policy,
)
from tests.published import mean_field_corruption, published_sequences

WITH_END, WITHOUT_END = [5, 9, END, 7, 8], [5, 9, 12, 7, 8]
BLOCKS = partial(block_random, block_length=2)
ESTIMATORS = [
    Elbo(),
    Elbo(draws=1),
    Elbo(draws=7),
    Elbo(masking=BLOCKS),
    Sandwich(),
    Sandwich(masking=BLOCKS),
    MeanField(),
    MeanField(prompt_mask_probability=0.0),
    Exact(),
    Exact(target=random_order_log_likelihood, rows=5),
    Stratified(),
    Quadrature(),
    Quadrature(nodes=3, draws=2),
]
# not repr: it holds addresses of functions, and every test process must collect the same names
NAMES = ["elbo", "elbo-1", "elbo-7", "elbo-blocks", "sandwich", "sandwich-blocks"]
NAMES += ["mean_field", "mean_field-0", "exact", "exact-likelihood"]
NAMES += ["stratified", "quadrature", "quadrature-3x2"]
# not −log V per token draw by draw for a uniform model: at l = 0 or L a sum is empty; counted 3/2
COUPLED = [Coupled(), Coupled(draws=3), CoupledToken()]


def sequences_of(prompts: list[list[int]], completions: list[list[int]]) -> Sequences:
    prompt_ids, prompt_mask = left_padded(prompts)
    ids = torch.tensor(completions)
    return Sequences(prompt_ids, prompt_mask, ids, counted_tokens(ids, (END,)))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def tables(policy: Policy, prompt: list[int], completion: list[int]) -> tuple[Tensor, int]:
    """log p [subset, token] of a completion, one unbatched call of the backbone per subset."""
    length = int(counted_tokens(torch.tensor([completion]), (END,)).sum())
    rows = []
    for hidden in itertools.product([False, True], repeat=length):
        hidden = hidden[::-1]  # so that row s hides the bits of s
        corrupted = [MASK if h else t for h, t in zip(hidden, completion, strict=False)]
        corrupted += [MASK] * (len(completion) - length)
        ids = torch.tensor([prompt + corrupted])
        everything = torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool)
        logits = policy.backbone(input_ids=ids, attention_mask=everything).logits[0]
        position = len(prompt) + torch.arange(length)
        rows.append(logits[position].log_softmax(-1)[range(length), completion[:length]])
    return torch.stack(rows), length


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy().double()


PROMPT = [6, 10, 23]


@pytest.mark.parametrize("completion", [WITH_END, WITHOUT_END, [END, 5, 5, 5, 5]])
@torch.no_grad()
def test_exact_and_elbo_against_full_enumeration(policy: Policy, completion: list[int]) -> None:
    table, length = tables(policy, PROMPT, completion)
    one = sequences_of([PROMPT], [completion])
    elbo = Exact()(policy, one, Exact().draw(one, 1, generator()))
    likelihood = Exact(target=random_order_log_likelihood, rows=3)
    log_pi = likelihood(policy, one, likelihood.draw(one, 1, generator()))
    assert float(elbo.value) == pytest.approx(float(order_averaged_elbo(table)), abs=1e-9)
    expected = float(random_order_log_likelihood(table))
    assert float(log_pi.value) == pytest.approx(expected, abs=1e-9)
    assert elbo.value <= log_pi.value + 1e-12
    if length > 1:
        assert log_pi.value - elbo.value > 1e-3  # the model depends on order: no empty test

    # Every outcome of one draw as a sample of its own: m with 1/L, the subset with 1/C(L, m).
    subsets = all_subsets(length)[1:]
    mask = torch.ones(len(subsets), len(completion), dtype=torch.bool)
    mask[:, :length] = subsets
    probability = torch.tensor([1 / (length * math.comb(length, int(s.sum()))) for s in subsets])
    assert float(probability.sum()) == pytest.approx(1)
    outcomes = sequences_of([PROMPT] * len(subsets), [completion] * len(subsets))
    estimator = Elbo(draws=1, masking=lambda *_: (mask[None], None))
    corruption = estimator.draw(outcomes, 1, generator())
    values = estimator(policy, outcomes, corruption).value
    assert float((probability * values).sum()) == pytest.approx(float(elbo.value), abs=1e-5)


@torch.no_grad()
def test_several_draws_are_averaged(policy: Policy) -> None:
    sequences = sequences_of([PROMPT, [5]], [WITH_END, WITHOUT_END])
    estimator = Elbo(draws=3)
    corruption = estimator.draw(sequences, 2, generator())
    together = estimator(policy, sequences, corruption).value
    alone = [
        estimator(policy, sequences, Corruption(corruption.mask[[k]], 3 * corruption.weight[[k]]))
        for k in range(3)
    ]
    mean = torch.stack([item.value for item in alone]).mean(0)
    torch.testing.assert_close(together, mean, rtol=1e-6, atol=0)


@torch.no_grad()
def test_weights_of_a_draw_by_hand() -> None:
    sequences = sequences_of([PROMPT], [WITH_END])  # L = 3
    mask = torch.tensor([[[True, False, True, True, True]], [[True, True, True, True, True]]])
    estimator = Elbo(draws=2, masking=lambda *_: (mask, None))
    weight = estimator.draw(sequences, 1, generator()).weight[:, 0]
    # L/(K·m) = 3/(2·2) and 3/(2·3), nothing after the end token
    assert weight.tolist() == [[0.75, 0, 0.75, 0, 0], [0.5, 0.5, 0.5, 0, 0]]


@torch.no_grad()
def test_mean_field_hides_all_and_scores_each_token_by_itself(policy: Policy) -> None:
    table, length = tables(policy, PROMPT, WITH_END)
    sequences = sequences_of([PROMPT], [WITH_END])
    estimator = MeanField(prompt_mask_probability=0.0)
    likelihood = estimator(policy, sequences, estimator.draw(sequences, 1, generator()))
    token_value = likelihood.token_value
    assert token_value is not None
    assert token_value[0, length:].tolist() == [0, 0]
    torch.testing.assert_close(token_value[0, :length], table[-1])
    assert float(likelihood.value) == pytest.approx(float(table[-1].sum()))
    assert torch.equal(likelihood.value, likelihood.score)


def test_the_prompt_is_masked_with_its_probability() -> None:
    sequences = sequences_of([[5] * 100] * 100, [[5, 5]] * 100)
    corruption = MeanField(prompt_mask_probability=0.15).draw(sequences, 4, generator())
    assert corruption.prompt_mask is not None
    # 5 standard deviations of 10,000 Bernoulli draws: 5·√(.15·.85/10⁴) = 0.018
    assert corruption.prompt_mask.float().mean() == pytest.approx(0.15, abs=0.018)
    assert corruption.mask.all()


@torch.no_grad()
def test_mean_field_agrees_with_published_d1() -> None:
    # 4 completions of 16 tokens after 8 of prompt; the recorded inputs have prompt tokens masked
    data = load_file(LLADA.parent / "d1.safetensors")
    policy = golden_llada()
    sequences = published_sequences(data["input_ids"])
    for iteration in range(2):
        corruption = mean_field_corruption(sequences, data["perturbed"][iteration])
        value = MeanField()(policy, sequences, corruption).token_value
        expected = torch.where(sequences.completion_mask, data["logp_new"][iteration], 0)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-5)


class Constant:
    """p = 1/V for every token whatever the input."""

    def __init__(self, vocabulary: int) -> None:
        self.value = -math.log(vocabulary)

    def log_likelihood(
        self, sequences: Sequences, mask: Tensor, prompt_mask: Tensor | None = None
    ) -> Tensor:
        return (mask & sequences.completion_mask) * self.value


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_a_uniform_model_has_exactly_minus_log_v_per_token(estimator: Estimator) -> None:
    sequences = sequences_of([PROMPT] * 3, [WITH_END, WITHOUT_END, [END, 5, 5, 5, 5]])
    corruption = estimator.draw(sequences, 3, generator())
    value = estimator(Constant(24), sequences, corruption).value
    expected = torch.tensor([3, 5, 1]) * -math.log(24)
    torch.testing.assert_close(value, expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize(
    "estimator", ESTIMATORS + COUPLED, ids=[*NAMES, "coupled", "coupled-3", "coupled_token"]
)
@pytest.mark.parametrize("shifted", [False, True])
@torch.no_grad()
def test_a_copy_oracle_has_zero_with_the_right_shift_only(
    estimator: Estimator, shifted: bool
) -> None:
    # the completions repeat no neighbour, so that an oracle off by one is wrong everywhere
    sequences = sequences_of([PROMPT], [[5, 9, 12, 7, END, 8]])
    corruption = estimator.draw(sequences, 1, generator())
    right = copy_oracle(sequences, int(shifted), shift_logits=shifted)
    assert float(estimator(right, sequences, corruption).value) == 0
    wrong = copy_oracle(sequences, int(shifted), shift_logits=not shifted)
    assert float(estimator(wrong, sequences, corruption).value) < -100


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(ESTIMATORS + COUPLED))
def test_draws_hide_what_does_not_count_and_never_move_the_global_state(
    seed: int, estimator: Estimator
) -> None:
    sequences = sequences_of([PROMPT] * 3, [WITH_END, WITHOUT_END, [END, 5, 5, 5, 5]])
    before = torch.random.get_rng_state()
    corruption = estimator.draw(sequences, 3, torch.Generator().manual_seed(seed))
    assert torch.equal(torch.random.get_rng_state(), before)
    hidden_or_counted = corruption.mask | sequences.completion_mask
    assert hidden_or_counted.all()
    scored = corruption.mask & sequences.completion_mask
    assert (corruption.weight[~scored] == 0).all()


def test_exact_refuses_more_than_sixteen_tokens() -> None:
    long = sequences_of([PROMPT], [[5] * 17])
    with pytest.raises(ValueError, match="L=17 is above 16"):
        Exact()(Constant(24), long, Exact().draw(long, 1, generator()))
    # what counts is the number of counted tokens
    ended = sequences_of([PROMPT], [[5, END, *[5] * 15]])
    value = Exact()(Constant(24), ended, Exact().draw(ended, 1, generator())).value
    assert float(value) == pytest.approx(-2 * math.log(24))


def test_gradients_flow_through_every_estimator() -> None:
    policy = tiny_policy()
    sequences = sequences_of([PROMPT], [WITH_END])
    for estimator in ESTIMATORS + COUPLED:
        policy.zero_grad()
        corruption = estimator.draw(sequences, 1, generator())
        estimator(policy, sequences, corruption).score.sum().backward()
        gradient = policy.backbone.model.embed_tokens.weight.grad
        assert gradient is not None
        assert gradient.abs().sum() > 0


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (Elbo, {"draws": 0}),
        (MeanField, {"prompt_mask_probability": 1.0}),
        (MeanField, {"prompt_mask_probability": -0.1}),
        (Exact, {"rows": 0}),
        (Elbo, {"draw": 2}),
    ],
)
def test_bad_settings_are_refused(make: type, settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        make(**settings)
