"""benchmarks/memory.py against counts by hand and against what PyTorch keeps."""

import contextlib

import pytest
import torch
from torch import Tensor

from benchmarks.cost import Decoding, Shape
from benchmarks.memory import (
    ALL_BF16,
    ALL_MIXED,
    Activations,
    Stored,
    activations,
    ddp_gpu,
    decoding_bytes,
    fsdp_gpu,
    layer_activations,
    low_rank,
    one_gpu,
    output_bytes,
    stored_adapter,
    stored_full,
)
from benchmarks.speed import build
from stabledrl.models.acceleration import Acceleration
from stabledrl.models.adapter import Lora
from stabledrl.policy import Policy

SMALL = Shape(hidden_size=8, layers=2, heads=2, feedforward_size=16, vocabulary=32)
ROWS, LENGTH, RANK = 3, 32, 4
KINDS = {"all": ALL_BF16, "mixed": ALL_MIXED, "lora": low_rank(RANK)}


def wide(layers: int) -> Shape:
    return Shape(64, layers, 4, 192, 128)


def policy_of(kind: str, layers: int, checkpointing: bool) -> Policy:
    dtype = torch.float32 if kind == "mixed" else torch.bfloat16
    policy = build(wide(layers), torch.device("cpu"), dtype)
    policy = Lora(rank=RANK, alpha=8.0)(policy) if kind == "lora" else policy
    return Acceleration(activation_checkpointing=checkpointing)(policy).train()


def kept_bytes(kind: str, layers: int, checkpointing: bool) -> int:
    """Of what autograd keeps of a forward pass, weights apart."""
    policy = policy_of(kind, layers, checkpointing)
    weights = {it.untyped_storage().data_ptr() for it in policy.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor
        return tensor

    ids = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    selection = torch.zeros_like(ids, dtype=torch.bool)
    selection[0, 0] = True
    mixed = torch.autocast("cpu", torch.bfloat16) if kind == "mixed" else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), mixed:
        policy(ids, torch.ones_like(selection), selection)
    return sum(it.untyped_storage().nbytes() for it in kept.values())


@pytest.mark.parametrize("kind", KINDS)
def test_activations_of_a_layer_are_those_that_autograd_keeps(kind):
    # autocast's copies of the weights are kept as well
    copies = 2 * wide(1).layer_matrices if kind == "mixed" else 0
    more = kept_bytes(kind, 2, False) - kept_bytes(kind, 1, False)
    expected = ROWS * LENGTH * layer_activations(wide(1), LENGTH, KINDS[kind])
    assert more == expected + copies
    assert activations(wide(5), ROWS, LENGTH, KINDS[kind], False) == 5 * expected


@pytest.mark.parametrize("kind", KINDS)
def test_with_checkpointing_a_layer_keeps_its_input(kind):
    number = 4 if kind == "mixed" else 2
    more = kept_bytes(kind, 2, True) - kept_bytes(kind, 1, True)
    assert more == ROWS * LENGTH * number * 64
    one = layer_activations(wide(1), LENGTH, KINDS[kind])
    expected = ROWS * LENGTH * (5 * number * 64 + one)
    assert activations(wide(5), ROWS, LENGTH, KINDS[kind], True) == expected


def test_bytes_by_hand():
    kept = Activations(hidden=3, feedforward=5, entering=2, adapter=7)
    assert layer_activations(SMALL, LENGTH, kept) == 3 * 8 + 5 * 16 + 7 + 64 + 8 + 8
    assert output_bytes(SMALL, 5) == 10 * 32 * 5
    decoding = Decoding(prompt_length=24, length=8, block_length=4, steps=4)
    assert decoding_bytes(SMALL, 3, decoding) == 3 * (32 * (4 * 8 + 6 * 16) + 12 * 32 * 4)


def test_stored_by_hand():
    parameters = SMALL.parameters
    assert stored_full(SMALL, 2) == Stored(2 * parameters, 2 * parameters, 4 * parameters)
    mixed = stored_full(SMALL, 4)
    assert mixed == Stored(4 * parameters, 4 * parameters, 8 * parameters, 2 * parameters)
    adapter = SMALL.adapter_parameters(RANK)
    found = stored_adapter(SMALL, RANK)
    assert found == Stored(2 * parameters + 4 * adapter, 4 * adapter, 8 * adapter)
    assert found.kept == 2 * parameters + 16 * adapter


def test_bytes_of_a_gpu_by_hand():
    stored = Stored(weights=100, gradients=100, moments=200, copies=30)
    assert one_gpu(stored, 7, 60) == 400 + 7 + 100  # a moment is more than 60 + 30
    assert one_gpu(stored, 7, 90) == 400 + 7 + 90 + 30
    assert ddp_gpu(stored, 7, 90) == 400 + 7 + 90 + 30 + 100


def test_bytes_of_a_divided_model_by_hand():
    # root 520, layer 656: 2·(2·520 + 3·656) = 6016 bytes are whole
    kept = 8 * SMALL.parameters
    assert fsdp_gpu(stored_full(SMALL, 2), 80, 50, SMALL, 8) == (kept + 80) / 8 + 6016 + 50
    mixed = fsdp_gpu(stored_full(SMALL, 4), 0, 50, SMALL, 8)
    assert mixed == 2 * kept / 8 + 2 * 6016 + 50 + 2 * SMALL.parameters
    large = Shape(hidden_size=8, layers=50, heads=2, feedforward_size=16, vocabulary=32)
    step = 10 * large.parameters / 2  # kept and a moment are more than one layer and the root
    assert fsdp_gpu(stored_full(large, 2), 0, 0, large, 2) == step


def test_optimiser_states_have_the_precision_of_the_weights():
    policy = build(SMALL, torch.device("cpu"), torch.bfloat16)
    optimizer = torch.optim.AdamW(policy.parameters())
    ids = torch.zeros(1, 4, dtype=torch.long)
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    policy(ids, everywhere, everywhere).sum().backward()
    optimizer.step()
    states = [it for state in optimizer.state.values() for it in state.values() if it.dim()]
    size = sum(it.numel() * it.element_size() for it in states)
    assert size == stored_full(SMALL, 2).moments
