"""Parameters that the loss does not reach are named once; those that it does reach are not."""

import logging

import pytest
import torch
from torch import nn

from stabledrl.models.adapter import Lora
from stabledrl.policy import Policy
from stabledrl.training.callbacks.gradients import MissingGradients
from stabledrl.training.callbacks.guard import Guard
from tests.training.small_runs import batches_of, module, trainer

LOGGER = "stabledrl.training.callbacks.gradients"


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, LOGGER)
    return lambda: [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_a_parameter_without_a_part_in_the_loss_is_named_once(warnings):
    learner = module()
    learner.policy.backbone.spare = nn.Linear(2, 2)
    count = len(list(learner.parameters()))
    trainer(MissingGradients(), max_epochs=2).fit(learner)
    (line,) = warnings()
    assert line.startswith(f"2 of {count} trainable parameters have no gradient in the first upd")
    assert line.endswith(": policy.backbone.spare.weight, policy.backbone.spare.bias")
    assert "\n" not in line


def test_of_many_the_first_three_are_named(warnings):
    learner = module()
    learner.policy.backbone.spare = nn.ParameterList(torch.zeros(1) for _ in range(5))
    trainer(MissingGradients()).fit(learner)
    (line,) = warnings()
    names = ", ".join(f"policy.backbone.spare.{number}" for number in range(3))
    assert line.startswith("5 of ")
    assert line.endswith(f": {names}, …")


def test_a_frozen_parameter_is_not_missed(warnings):
    learner = module()
    learner.policy.backbone.spare = nn.Linear(2, 2).requires_grad_(False)
    trainer(MissingGradients()).fit(learner)
    assert warnings() == []


def test_an_adapter_whose_first_gradient_is_zero_in_one_factor_is_not_missed(warnings):
    learner = module(policy=Lora(rank=2, alpha=2))
    zero: list[bool] = []

    class Look(MissingGradients):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            named = {n: p.grad for n, p in pl_module.named_parameters() if p.requires_grad}
            zero.append(all(not g.any() for n, g in named.items() if ".lora_A." in n))
            super().on_before_optimizer_step(trainer, pl_module, optimizer)

    trainer(Look(), max_epochs=1).fit(learner)
    assert zero == [True, False]  # two updates: B is 0 in the first
    assert warnings() == []


class Mixed(Policy):
    """Uses one spare parameter in every other pass with gradient only."""

    passes = 0

    def forward(self, input_ids, token_mask, selection):
        logits = super().forward(input_ids, token_mask, selection)
        if torch.is_grad_enabled():
            self.passes += 1
            if self.passes % 2 == 0:
                logits = logits + self.backbone.spare
        return logits


def test_every_batch_of_an_update_counts(warnings):
    learner = module(batches_of(2))
    learner.policy.backbone.spare = nn.Parameter(torch.zeros(()))
    learner.policy.__class__ = Mixed
    trainer(MissingGradients(), accumulate_grad_batches=2).fit(learner)
    assert warnings() == []


def test_an_update_that_the_guard_skips_is_no_sign(warnings):
    learner = module()

    class Break(Guard):
        def on_after_backward(self, trainer, pl_module):
            next(p for p in pl_module.parameters() if p.grad is not None).grad.fill_(torch.nan)

    guard = Break()
    trainer(guard, MissingGradients()).fit(learner)
    assert guard.skipped == 2
    assert warnings() == []
