"""LoRA: what is trained, what is the reference, what is written, for every model family."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from stabledrl.errors import UserError
from stabledrl.models import adapter, dream, llada, masked_lm, sdar
from stabledrl.models.adapter import Lora
from stabledrl.policy import Policy, WithoutAdapter
from stabledrl.types import Sequences
from tests.conftest import ROOT
from tests.models.test_masked_lm import bert, modernbert, saved
from tests.policies import tiny_policy

GOLDEN = ROOT / "tests/golden"
Make = Callable[..., Policy]


def golden(load: Make, name: str) -> Make:
    return lambda _, **settings: load(str(GOLDEN / name), **settings)


def masked(kind: Callable[[], object]) -> Make:
    return lambda folder, **settings: masked_lm.load(str(saved(folder, kind)), [], **settings)


FAMILIES = {
    "llada": golden(llada.load, "llada"),
    "dream": golden(dream.load, "dream"),
    "sdar": golden(sdar.load, "sdar"),
    "bert": masked(bert),
    "modernbert": masked(modernbert),
}


@pytest.fixture(params=FAMILIES)
def made(request, tmp_path) -> Policy:
    return FAMILIES[request.param](tmp_path / "base").eval()


def perturbed(policy: Policy) -> Policy:
    """A and B as after some training."""
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.2, generator=generator)
    return policy


@torch.no_grad()
def logits(policy: Policy) -> Tensor:
    """At all positions of three rows, one of them padded."""
    ids = torch.arange(4, 22).view(3, 6)
    seen = torch.ones_like(ids, dtype=torch.bool)
    seen[0, :2] = False
    return policy(ids, seen, seen)


def state(policy: Policy) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


SEQUENCES = Sequences(
    torch.tensor([[0, 5, 6], [7, 8, 9]]),
    torch.tensor([[False, True, True], [True, True, True]]),
    torch.tensor([[10, 11, 12], [13, 14, 15]]),
    torch.ones(2, 3, dtype=torch.bool),
)
MASK = torch.tensor([[True, False, True], [True, True, False]])


def test_only_the_factors_on_the_projections_are_trained(made):
    linear = {n for n, part in made.backbone.named_modules() if isinstance(part, torch.nn.Linear)}
    expected = {n for n in linear if n.rpartition(".")[2] in made.facts.lora_targets}
    assert len(expected) >= 4
    Lora(rank=3, alpha=6)(made)
    trained = {n: p for n, p in made.backbone.named_parameters() if p.requires_grad}
    assert trained.keys() == {
        f"{name}.lora_{factor}.default.weight" for name in expected for factor in "AB"
    }
    for name, parameter in trained.items():
        assert parameter.shape[0 if ".lora_A." in name else 1] == 3


def test_at_first_the_policy_is_what_it_was_bit_for_bit(made):
    before = logits(made)
    assert torch.equal(logits(Lora(rank=3, alpha=6)(made)), before)


def test_without_its_adapter_a_policy_is_the_frozen_copy_bit_for_bit(made):
    frozen, before = copy.deepcopy(made), logits(made)
    perturbed(Lora(rank=3, alpha=6)(made))
    assert not torch.allclose(logits(made), before, atol=1e-3)
    with made.adapter.off(made.backbone):
        assert torch.equal(logits(made), before)
    assert not torch.allclose(logits(made), before, atol=1e-3)  # on again
    assert any(p.requires_grad for p in made.parameters())
    if made.facts.block_length is None:
        judge = made.frozen()
        assert isinstance(judge, WithoutAdapter)
        value = judge.log_likelihood(SEQUENCES, MASK)
        assert torch.equal(value, frozen.log_likelihood(SEQUENCES, MASK).detach())
        assert not value.requires_grad
        assert made.log_likelihood(SEQUENCES, MASK).requires_grad


def test_an_adapter_is_merged_into_what_is_written_and_nowhere_else(made, tmp_path):
    plain = {name: value.clone() for name, value in made.backbone.state_dict().items()}
    made.save_pretrained(tmp_path / "untrained")
    perturbed(Lora(rank=3, alpha=6)(made))
    before, expected = state(made), logits(made)
    written = {name: value.clone() for name, value in plain.items()}
    for name, value in plain.items():
        layer = name.removesuffix(".weight")
        factors = [f"backbone.{layer}.lora_{factor}.default.weight" for factor in "BA"]
        if factors[0] in before:  # W + (6/3)·B·A
            written[name] = value + 2 * before[factors[0]] @ before[factors[1]]
    merged = made.adapter.merged(made.backbone)
    assert merged.state_dict().keys() == plain.keys()
    for name, value in merged.state_dict().items():
        torch.testing.assert_close(value, written[name], rtol=1e-6, atol=1e-6)
    made.save_pretrained(tmp_path / "trained")
    after = state(made)
    assert before.keys() == after.keys()
    assert all(value.equal(after[name]) for name, value in before.items())
    assert torch.equal(logits(made), expected)
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("untrained", "trained")]
    assert {k: v.shape for k, v in files[0].items()} == {k: v.shape for k, v in files[1].items()}
    made.backbone = merged.eval()
    torch.testing.assert_close(logits(made), expected, rtol=1e-4, atol=1e-4)


# peft 0.21 with transformers 5.24
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_adapter_alone_loads_with_peft(made, tmp_path):
    plain = copy.deepcopy(made)
    made.save_adapter(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    perturbed(Lora(rank=3, alpha=6)(made)).save_adapter(tmp_path / "adapter")
    plain.backbone = PeftModel.from_pretrained(plain.backbone, tmp_path / "adapter").model.eval()
    assert torch.equal(logits(plain), logits(made))


def test_what_is_written_is_a_checkpoint_of_its_family(tmp_path):
    policy = perturbed(Lora(rank=3, alpha=6)(FAMILIES["dream"](tmp_path))).eval()
    policy.save_pretrained(tmp_path / "model")
    again = dream.load(str(tmp_path / "model")).eval()
    torch.testing.assert_close(logits(again), logits(policy), rtol=1e-4, atol=1e-4)
    tiny = perturbed(Lora(rank=3, alpha=6)(tiny_policy())).eval()
    tiny.save_pretrained(tmp_path / "tiny")
    tiny.backbone = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny")
    assert not any("lora" in name for name in tiny.state_dict())


def test_a_model_in_bfloat16_has_an_adapter_in_float32(tmp_path):
    policy = FAMILIES["llada"](tmp_path, dtype="bfloat16")
    frozen = copy.deepcopy(policy)
    perturbed(Lora(rank=3, alpha=6)(policy))
    before = state(policy)
    dtypes = {p.requires_grad: p.dtype for p in policy.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    value = policy.log_likelihood(SEQUENCES, MASK)
    assert value.dtype == torch.float32
    value.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in policy.parameters() if p.requires_grad)
    reference = policy.frozen().log_likelihood(SEQUENCES, MASK)
    assert torch.equal(reference, frozen.log_likelihood(SEQUENCES, MASK).detach())
    policy.save_pretrained(tmp_path / "model")
    saved_weights = load_file(tmp_path / "model/model.safetensors")
    assert {weight.dtype for weight in saved_weights.values()} == {torch.bfloat16}
    name = "model.layers.0.self_attn.q_proj"
    factors = (before[f"backbone.{name}.lora_{factor}.default.weight"] for factor in "BA")
    weight = before[f"backbone.{name}.base_layer.weight"].float() + 2 * torch.mm(*factors)
    merged = policy.adapter.merged(policy.backbone).state_dict()[f"{name}.weight"]
    assert torch.equal(merged, weight.bfloat16())  # rounded once
    after = state(policy)
    assert all(value.equal(after[key]) for key, value in before.items())


def test_the_seed_draws_the_factors_and_nothing_else_moves():
    before = torch.random.get_rng_state()
    one, other, third = (Lora(rank=2, alpha=2, seed=s)(tiny_policy()) for s in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    name = "backbone.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    assert torch.equal(one.state_dict()[name], other.state_dict()[name])
    assert not torch.equal(one.state_dict()[name], third.state_dict()[name])


def test_chosen_targets():
    policy = Lora(rank=2, alpha=2, targets=["q_proj", "mlp.up_proj"])(tiny_policy())
    trained = {n.split(".lora_")[0] for n, p in policy.named_parameters() if p.requires_grad}
    layer = "backbone.model.layers.0"
    assert trained == {f"{layer}.self_attn.q_proj", f"{layer}.mlp.up_proj"}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("q_projj", "'q_projj' is no linear layer of LlamaForCausalLM; did you mean 'q_proj'?"),
        ("embed_tokens", "'embed_tokens' is no linear layer of LlamaForCausalLM"),
        ("zzz", r"\(there are down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj"),
    ],
)
def test_targets_that_are_not_there(target, words):
    with pytest.raises(UserError, match=rf"^adapter\.targets: .*{words}"):
        Lora(rank=2, alpha=2, targets=["v_proj", target])(tiny_policy())


def test_an_output_layer_is_adapted_unless_it_shares_its_weight(tmp_path):
    policy = Lora(rank=2, alpha=2, targets=["lm_head"])(tiny_policy())
    before = logits(policy)
    assert not torch.equal(logits(perturbed(policy)), before)
    policy = FAMILIES["bert"](tmp_path)
    with pytest.raises(UserError, match=r"^adapter\.targets: 'decoder' shares its weight with"):
        Lora(rank=2, alpha=2, targets=["decoder"])(policy)


def test_without_peft_it_is_told_how_to_install_it(monkeypatch):
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs peft; pip install 'stabledrl\[lora\]'"):
        Lora(rank=2, alpha=2)


@pytest.mark.parametrize("settings", [{"rank": 0}, {"alpha": 0}, {"dropout": 1}, {"targets": []}])
def test_numbers_that_make_no_adapter(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Lora(**({"rank": 2, "alpha": 2} | settings))


def test_none_trains_everything():
    policy = tiny_policy()
    assert adapter.none(policy) is policy
    assert all(p.requires_grad for p in policy.parameters())
    frozen = policy.frozen()
    assert isinstance(frozen, Policy)
    assert not any(p.requires_grad for p in frozen.parameters())
