"""Learning rates below the spacing of the weights."""

import logging

import pytest
import torch

from stabledrl.training.resolution import lost_steps, warn_of_lost_steps


def optimizer(weights, lr):
    return torch.optim.AdamW([torch.nn.Parameter(weights)], lr=lr)


def test_bfloat16_has_no_number_so_near(caplog):
    # between 1 and 2 bfloat16 has steps of 2⁻⁷: half of one is rounded to even, a quarter is lost
    weights = torch.tensor([1.0, 1.5, 1.25, 0.0], dtype=torch.bfloat16)
    assert lost_steps(optimizer(weights, 2**-9)) == 0.75  # 0 moves by any step
    assert lost_steps(optimizer(weights, 2**-7)) == 0
    assert lost_steps(optimizer(weights.float(), 2**-9)) == 0
    with caplog.at_level(logging.WARNING):
        warn_of_lost_steps(optimizer(weights.float(), 2**-9))
        assert not caplog.messages
        warn_of_lost_steps(optimizer(weights, 2**-9))
    (line,) = caplog.messages
    assert line.startswith("optimizer.lr=0.00195312 is lost on 75 % of the weights")
    assert "model.dtype=float32 trainer.precision=bf16-mixed" in line


@pytest.mark.parametrize(("lr", "lost"), [(1e-6, True), (4e-4, False)])
def test_weights_of_a_language_model(lr, lost):
    weights = 0.02 * torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    assert (lost_steps(optimizer(weights.bfloat16(), lr)) > 0.5) == lost
