"""Supervised fine-tuning: solutions as sequences, the loss by hand, examples keyed by number."""

from functools import partial

import pytest
import torch

from stabledrl.estimators.elbo import Elbo
from stabledrl.policy import Policy
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from stabledrl.training.callbacks.completions import Completions
from stabledrl.training.metrics_file import MetricsFile
from stabledrl.training.module import Validation
from stabledrl.training.schedule import constant
from stabledrl.training.supervision import Curriculum, SupervisedModule, solved_sequences
from tests.policies import END, MASK, VOCABULARY, positional_policy
from tests.training.small_runs import LENGTH, Digits, lively_policy, rows, trainer


def curriculum(batch_size: int = 4, steps_per_epoch: int = 2) -> Curriculum:
    return Curriculum(Digits(), Elbo(draws=2), batch_size, steps_per_epoch, LENGTH, seed=0)


def learner(lessons: Curriculum, given: Policy | None = None) -> SupervisedModule:
    task = Digits()
    sampler = SemiAutoregressive(length=LENGTH, block_length=LENGTH, steps=3)
    validation = Validation(task, sampler, task.prompts("validation", 0, 0, 3), 2)
    optimizer = partial(torch.optim.AdamW, lr=0.01)
    return SupervisedModule(given or lively_policy(), optimizer, constant, validation, lessons)


def test_solutions_are_filled_with_end_tokens_that_count():
    policy, task = lively_policy(), Digits()
    prompts = task.prompts("train", 0, 0, 3)
    sequences = solved_sequences(policy, task, prompts, 5)
    digits = policy.tokenizer.encode("123", add_special_tokens=False)
    assert sequences.completion_ids.tolist() == [[*digits, END, END]] * 3
    assert sequences.completion_mask.all()
    assert sequences.length.tolist() == [5, 5, 5]
    assert policy.decode(sequences.prompt_ids, sequences.prompt_mask) == [p.text for p in prompts]


def test_a_solution_may_fill_the_completion_but_not_overflow_it():
    policy, task = lively_policy(), Digits()
    prompts = task.prompts("train", 0, 0, 2)
    assert solved_sequences(policy, task, prompts, 3).completion_ids.shape == (2, 3)
    with pytest.raises(ValueError, match=r"^sampler\.length=2 is too short for the solution '123'"):
        solved_sequences(policy, task, prompts, 2)


def test_the_loss_is_minus_the_mean_proxy_per_token():
    lessons = curriculum()
    module = learner(lessons)
    sequences, corruption = lessons.example(module.policy, 0)
    # by hand: L̂ = 1/K Σ_draws (L/m) Σ_masked log p, from the logits of the corrupted sequence
    total = 0.0
    for mask in corruption.mask:
        ids = sequences.completion_ids.masked_fill(mask, MASK)
        whole = torch.cat([sequences.prompt_ids, ids], 1)
        real = torch.cat([sequences.prompt_mask, torch.ones_like(mask)], 1)
        with torch.no_grad():
            logits = module.policy(whole, real, torch.ones_like(real))
        logits = logits.view(*whole.shape, VOCABULARY)[:, -LENGTH:]
        chosen = logits.log_softmax(-1).gather(-1, sequences.completion_ids[..., None])[..., 0]
        total += (LENGTH / mask.sum(-1) * (chosen * mask).sum(-1)).mean().item() / 2
    loss = module.training_step((sequences, corruption), 0)
    assert loss.item() == pytest.approx(-total / LENGTH, rel=1e-5)
    assert loss.requires_grad


def test_a_uniform_policy_loses_ln_v_per_token():
    lessons = curriculum()
    flat = [dict.fromkeys(range(VOCABULARY), 1 / VOCABULARY)] * LENGTH
    prompt = max(len(p.text) for p in Digits().prompts("train", 0, 0, 4))
    module = learner(lessons, positional_policy(flat, prompt))
    loss = module.training_step(lessons.example(module.policy, 0), 0)
    assert loss.item() == pytest.approx(torch.tensor(float(VOCABULARY)).log().item(), rel=1e-5)


def test_a_batch_is_the_same_whenever_it_is_asked_for():
    lessons, policy = curriculum(), lively_policy()
    first, mask = lessons.example(policy, 1)
    lessons.example(policy, 0)
    torch.rand(3)
    again, same_mask = lessons.example(policy, 1)
    other, _ = lessons.example(policy, 2)
    assert torch.equal(first.prompt_ids, again.prompt_ids)
    assert torch.equal(mask.mask, same_mask.mask)
    assert not torch.equal(first.prompt_ids, other.prompt_ids)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_epoch_has_its_updates_and_no_example_comes_twice(tmp_path, accumulation):
    class Recorded(Curriculum):
        def example(self, policy, number, share):
            numbers.append(number)
            return super().example(policy, number, share)

    numbers: list[int] = []
    lessons = Recorded(Digits(), Elbo(draws=2), 4 // accumulation, 2, LENGTH, seed=0)
    module = learner(lessons)
    trainer(
        Completions(str(tmp_path), every=1),  # finds nothing to show, and says nothing
        logger=MetricsFile(str(tmp_path)),
        accumulate_grad_batches=accumulation,
        max_epochs=2,
    ).fit(module)
    assert module.global_step == 4
    assert numbers == list(range(4 * accumulation))
    found = rows(tmp_path)
    assert [row["phase"] for row in found] == ["0.0", "0.0", "1.0", "1.0"]
    assert {"step", "phase", "train/loss", "train/grad_norm", "train/learning_rate"} == set(
        found[0]
    )
    assert float(found[-1]["train/loss"]) < float(found[0]["train/loss"])
    assert not (tmp_path / "completions").exists()


def test_the_logged_loss_is_the_mean_over_accumulated_batches(tmp_path):
    lessons = curriculum(batch_size=2)
    module = learner(lessons)
    with torch.no_grad():
        losses = [module.training_step(lessons.example(module.policy, n), n) for n in range(2)]
    module = learner(lessons)
    trainer(logger=MetricsFile(str(tmp_path)), accumulate_grad_batches=2).fit(module)
    expected = torch.stack(losses).mean().item()
    assert float(rows(tmp_path)[0]["train/loss"]) == pytest.approx(expected, rel=1e-6)
