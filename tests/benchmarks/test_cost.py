"""benchmarks/cost.py against counts by hand and against what PyTorch counts."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cost import (
    LLADA_8B,
    Decoding,
    Shape,
    forward_flops,
    layer_flops,
    rollout_flops,
    update_flops,
)
from benchmarks.speed import build, sampler_of
from stabledrl.models.acceleration import Acceleration
from stabledrl.models.adapter import Lora
from stabledrl.policy import Policy

SMALL = Shape(hidden_size=8, layers=2, heads=2, feedforward_size=16, vocabulary=32)
ROWS, LENGTH = 3, 32


def built(shape: Shape) -> Policy:
    return build(shape, torch.device("cpu"), torch.bfloat16)


def inputs(scored: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, token mask and selection with `scored` positions in all."""
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    selection = torch.zeros_like(ids, dtype=torch.bool)
    selection.view(-1)[:scored] = True
    return ids, torch.ones_like(selection), selection


def test_an_uneven_head_is_refused():
    with pytest.raises(ValueError, match="3 heads do not divide a hidden size of 8"):
        Shape(8, 1, 3, 16, 32)


def test_llada_has_8_billion_parameters():
    # 32 · (4·4096² + 3·4096·12288 + 2·4096) + 2·126464·4096 + 4096
    assert LLADA_8B.parameters == 8_015_581_184
    policy = build(LLADA_8B, torch.device("meta"), torch.bfloat16)
    assert sum(parameter.numel() for parameter in policy.parameters()) == LLADA_8B.parameters


def test_parts_are_those_of_the_model():
    policy = built(SMALL)
    layer = policy.backbone.base_model.layers[0]
    assert sum(it.numel() for it in layer.parameters()) == SMALL.layer_parameters == 656
    assert sum(it.numel() for it in policy.parameters()) == SMALL.parameters == 2 * 656 + 520


def test_an_adapter_has_the_parameters_of_lora():
    policy = Lora(rank=4, alpha=8.0)(built(SMALL))
    trained = sum(it.numel() for it in policy.parameters() if it.requires_grad)
    assert trained == SMALL.adapter_parameters(4) == 2 * 4 * (4 * 16 + 3 * 24)


def test_operations_by_hand():
    # a token and a layer: 2·(4·64 + 3·8·16) = 1280 of matrices, 4·32·8 = 1024 of attention
    assert layer_flops(SMALL, ROWS, LENGTH) == 2 * 3 * 32 * (1280 + 1024)
    assert forward_flops(SMALL, ROWS, LENGTH, 5) == 2 * 3 * 32 * 2304 + 2 * 8 * 32 * 5
    assert update_flops(SMALL, ROWS, LENGTH, 5) == 3 * forward_flops(SMALL, ROWS, LENGTH, 5)
    again = update_flops(SMALL, ROWS, LENGTH, 5, recomputed=True)
    assert again == 3 * forward_flops(SMALL, ROWS, LENGTH, 5) + 2 * 3 * 32 * (2304 - 256)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_operations_are_those_that_pytorch_counts(checkpointing):
    policy = Acceleration(activation_checkpointing=checkpointing)(built(SMALL))
    # plain matrix products: a fused backward pass of attention computes its scores once more
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        policy(*inputs(5))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as update:
        policy(*inputs(5)).sum().backward()
    assert forward.get_total_flops() == forward_flops(SMALL, ROWS, LENGTH, 5)
    expected = update_flops(SMALL, ROWS, LENGTH, 5, recomputed=checkpointing)
    assert update.get_total_flops() == expected


def test_passes_of_decoding_by_hand():
    # blocks of 6 in 4 passes commit 2, 2, 1, 1: 6 + 4 + 2 + 1 positions are masked
    decoding = Decoding(prompt_length=4, length=12, block_length=6, steps=8)
    assert decoding.context == 16
    assert decoding.scored == 2 * 13
    expected = 8 * layer_flops(SMALL, 1, 16) + 2 * 8 * 32 * 26
    assert rollout_flops(SMALL, 3, decoding) == 3 * expected


def test_operations_of_decoding_are_those_that_pytorch_counts():
    decoding = Decoding(prompt_length=4, length=12, block_length=6, steps=8)
    policy, sampler = built(SMALL), sampler_of(decoding)
    prompt = torch.zeros(3, 4, dtype=torch.long)
    uniform = sampler.draw(3, torch.Generator().manual_seed(0))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        sampler(policy, prompt, torch.ones_like(prompt, dtype=torch.bool), uniform)
    assert counter.get_total_flops() == rollout_flops(SMALL, 3, decoding)
