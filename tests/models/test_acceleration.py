"""Activation checkpointing and torch.compile change neither values nor gradients nor names."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partialmethod

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from stabledrl.errors import UserError
from stabledrl.models import acceleration
from stabledrl.models.acceleration import Acceleration, has_compiler
from stabledrl.models.adapter import Lora
from stabledrl.policy import Policy
from tests.models.test_adapter import FAMILIES, MASK, SEQUENCES, logits, perturbed
from tests.policies import fake_policy, tiny_policy

# of torch 2.13's own, when it compiles
QUIET = (
    "ignore:`torch.jit.script:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)
needs_compiler = pytest.mark.skipif(not has_compiler(), reason="torch.compile needs a C++ compiler")


@pytest.fixture(
    params=["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, needs_compiler])]
)
def compiled(request, monkeypatch) -> Acceleration:
    """With torch.compile's usual backend, and with the one that stops short of C++: seconds."""
    monkeypatch.setattr(acceleration, "has_compiler", lambda: True)
    whole = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(whole, backend=request.param))
    torch._dynamo.reset()
    return Acceleration(compile=True)


@pytest.fixture(params=["llada", "dream", "bert", "modernbert"])
def made(request, tmp_path) -> Policy:
    return FAMILIES[request.param](tmp_path / "base")


def gradients(policy: Policy) -> dict[str, Tensor]:
    policy.train().zero_grad()
    (policy.log_likelihood(SEQUENCES, MASK).square().sum() / 10).backward()
    return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}


def layer_runs(policy: Policy) -> list[int]:
    """Counts, in its first entry, how often the first layer is run."""
    runs = [0]
    kind = acceleration.GradientCheckpointingLayer
    layer = next(part for part in policy.modules() if isinstance(part, kind))
    inner = next(part for part in layer.modules() if isinstance(part, torch.nn.Linear))
    inner.register_forward_hook(lambda *_: runs.__setitem__(0, runs[0] + 1))
    return runs


@pytest.mark.parametrize("adapted", [False, True])
def test_checkpointing_changes_no_gradient_and_runs_layers_again(made, adapted, monkeypatch):
    monkeypatch.setattr(CheckpointFunction, "forward", None)  # the reentrant one
    policy = perturbed(Lora(rank=2, alpha=2)(made)) if adapted else made
    expected = gradients(policy)
    other = Acceleration(activation_checkpointing=True)(copy.deepcopy(policy))
    runs = layer_runs(other)
    found = gradients(other)
    assert runs == [2]  # forward, and again in backward
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
    runs[0] = 0
    assert torch.equal(logits(other), logits(policy))
    assert runs == [1]


def test_nothing_is_set_unless_asked_for():
    policy = Acceleration()(tiny_policy())
    runs = layer_runs(policy)
    gradients(policy)
    assert runs == [1]


@pytest.mark.filterwarnings(*QUIET)
def test_compiled_layers_compute_the_same_for_every_length_under_the_same_names(compiled, tmp_path):
    policy = FAMILIES["llada"](tmp_path)
    names, expected = policy.state_dict().keys(), gradients(policy)
    other = compiled(copy.deepcopy(policy))
    frozen = other.frozen()
    assert isinstance(frozen, Policy)
    assert all(
        part._compiled_call_impl is not None
        for it in (other, frozen)
        for part in it.modules()
        if isinstance(part, acceleration.GradientCheckpointingLayer)
    )
    assert other.state_dict().keys() == names
    found = gradients(other)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits(other), logits(policy), rtol=0, atol=1e-5)
    counted = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for rows, width in ((2, 9), (3, 17), (5, 12)):
        ids = torch.arange(rows * width).view(rows, width) % 20 + 4
        seen = torch.ones_like(ids, dtype=torch.bool)
        seen[0, :3] = False
        with torch.no_grad():
            torch.testing.assert_close(
                other(ids, seen, seen), policy(ids, seen, seen), rtol=0, atol=1e-5
            )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == counted
    other.save_pretrained(tmp_path / "saved")
    policy.save_pretrained(tmp_path / "plain")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("saved", "plain")]
    assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.filterwarnings(*QUIET)
def test_a_compiled_policy_with_an_adapter_and_checkpointing(compiled, tmp_path):
    policy = perturbed(Lora(rank=2, alpha=2)(FAMILIES["dream"](tmp_path)))
    expected, plain = gradients(policy), copy.deepcopy(policy)
    both = replace(compiled, activation_checkpointing=True)(policy)
    found = gradients(both)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        both.frozen().log_likelihood(SEQUENCES, MASK),
        plain.frozen().log_likelihood(SEQUENCES, MASK),
        rtol=0,
        atol=1e-5,
    )
    torch.testing.assert_close(logits(both), logits(plain), rtol=0, atol=1e-5)


def test_a_model_without_marked_layers_is_refused():
    with pytest.raises(UserError, match="acceleration: transformers does not say what a layer of"):
        Acceleration(activation_checkpointing=True)(fake_policy(lambda ids: ids))
    Acceleration()(fake_policy(lambda ids: ids))


def test_without_a_compiler_it_is_told_at_once(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ValueError, match=r"acceleration\.compile=true needs a C\+\+ compiler"):
        Acceleration(compile=True)
