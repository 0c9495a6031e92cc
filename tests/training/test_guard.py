"""A NaN skips the update: weights and moments stay bitwise, the count goes up, training goes on."""

import copy
import logging
from dataclasses import replace
from math import inf, isfinite

import lightning.pytorch as pl
import pytest
import torch

from stabledrl.penalty import DivergencePenalty
from stabledrl.training.callbacks.guard import Guard
from stabledrl.training.metrics_file import MetricsFile
from stabledrl.training.module import ReinforcementModule
from stabledrl.types import Prompt, RewardOutput
from tests.training.small_runs import Digits, batches_of, module, rows, trainer


class States(pl.Callback):
    """Weights and moments before every batch and at the end."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict, dict]] = []

    def keep(self, pl_module: pl.LightningModule) -> None:
        optimizer = pl_module.optimizers().optimizer.state_dict()["state"]
        self.seen.append((copy.deepcopy(pl_module.state_dict()), copy.deepcopy(optimizer)))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.keep(pl_module)

    def on_train_end(self, trainer, pl_module):
        self.keep(pl_module)


def bits(state: tuple[dict, dict]) -> list[torch.Tensor]:
    weights, moments = state
    inner = [value for entry in moments.values() for value in entry.values()]
    return [
        value.contiguous().view(torch.uint8)
        for value in (*weights.values(), *map(as_vector, inner))
    ]


def as_vector(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)


def same(left: tuple[dict, dict], right: tuple[dict, dict]) -> bool:
    one, two = bits(left), bits(right)
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def poison(learner: ReinforcementModule, batch: int, factor: float) -> None:
    """Multiply the loss of one batch."""
    whole, calls = learner.training_step, iter(range(100))

    def training_step(*arguments):
        loss = whole(*arguments)
        return loss * factor if next(calls) == batch else loss

    learner.training_step = training_step  # type: ignore[method-assign]


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_an_update_that_is_not_finite_changes_nothing(tmp_path, caplog, batch, factor):
    learner, states, guard = module(), States(), Guard()
    poison(learner, batch, factor)
    with caplog.at_level(logging.WARNING):
        trainer(
            states, guard, logger=MetricsFile(str(tmp_path)), max_epochs=2, gradient_clip_val=1.0
        ).fit(learner)
    changed = [not same(a, b) for a, b in zip(states.seen, states.seen[1:], strict=False)]
    assert changed == [step != batch for step in range(4)]
    assert guard.skipped == 1
    counted = [float(row["guard/nonfinite_updates"]) for row in rows(tmp_path)]
    assert counted == [float(step >= batch) for step in range(4)]
    [record] = [r for r in caplog.records if r.name.startswith("stabledrl")]
    # the loss is broken on its way out of the module, where nothing is remembered of it;
    # backpropagation meets the output layer first
    name = "gradient of policy.backbone.lm_head.weight"
    assert record.getMessage() == f"update {batch} skipped: the {name} is not finite"
    norms = [float(row["train/grad_norm"]) for row in rows(tmp_path)]
    assert [isfinite(norm) for norm in norms] == [step != batch for step in range(4)]
    assert all(value.isfinite().all() for value in learner.state_dict().values())


class Generous(Digits):
    """Pays one completion in two without bound and has no verdict on the others."""

    def __init__(self) -> None:
        self.calls = 0

    def verify(self, prompt: Prompt, completion: str) -> RewardOutput:
        self.calls += 1
        return RewardOutput(inf if self.calls % 2 else None, False)


def break_weights(learner: ReinforcementModule) -> None:
    with torch.no_grad():
        next(learner.policy.parameters()).mul_(float("nan"))


def broken_batch(learner: ReinforcementModule, batch, broken: str):
    """The batch with one broken quantity."""
    if broken == "new":
        break_weights(learner)
    if broken == "advantage":
        return replace(batch, advantage=batch.advantage * inf)
    if broken in ("old", "reference"):
        whole = getattr(batch, broken)
        return replace(batch, **{broken: replace(whole, value=whole.value * float("nan"))})
    return batch


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("weights", "rollout log-likelihood"),
        ("reward", "reward"),
        ("advantage", "advantage"),
        ("old", "old likelihood"),
        ("reference", "reference likelihood"),
        ("new", "log-ratio"),
        ("loss", "loss"),
    ],
)
def test_what_broke_first_is_named(caplog, broken, named):
    penalty = DivergencePenalty(inf if broken == "loss" else 0.5)
    learner, guard = module(penalty=penalty), Guard()
    if broken == "weights":
        break_weights(learner)
    if broken == "reward":
        learner.collector = replace(learner.collector, task=Generous())
    whole = learner.training_step

    def training_step(*arguments):
        batch, index = arguments
        return whole(broken_batch(learner, batch, broken), index)

    learner.training_step = training_step  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        trainer(guard).fit(learner)
    assert f"update 0 skipped: the {named} is not finite" in caplog.text


def test_finite_gradients_too_large_to_be_squared_are_skipped_too(caplog):
    learner, states, guard = module(), States(), Guard()
    poison(learner, 0, 1e36)  # Adam would square them, and never move these weights again
    with caplog.at_level(logging.WARNING):
        trainer(states, guard, gradient_clip_val=1.0).fit(learner)
    assert same(states.seen[0], states.seen[1])
    assert not same(states.seen[1], states.seen[2])
    assert "update 0 skipped: the norm of the gradient is not finite" in caplog.text


def test_one_broken_batch_of_an_accumulated_update_skips_the_whole_update():
    learner, states, guard = module(batches_of(2)), States(), Guard()
    poison(learner, 0, float("nan"))
    trainer(states, guard, accumulate_grad_batches=2).fit(learner)
    # before batches 0, 1 (update 0), 2, 3 (update 1), and the end
    assert same(states.seen[0], states.seen[2])
    assert not same(states.seen[3], states.seen[4])
    assert guard.skipped == 1


def test_without_the_guard_the_weights_would_be_lost():
    learner = module()
    poison(learner, 0, float("nan"))
    trainer().fit(learner)
    assert not all(value.isfinite().all() for value in learner.state_dict().values())


def test_the_count_goes_into_checkpoints():
    guard, other = Guard(), Guard()
    guard.skipped = 3
    other.load_state_dict(guard.state_dict())
    assert other.skipped == 3
