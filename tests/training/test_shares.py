"""What a process is given of examples and of validation prompts."""

import pytest
import torch

from stabledrl.estimators.elbo import Elbo
from stabledrl.samplers.semi_autoregressive import SemiAutoregressive
from stabledrl.training.module import Validation
from stabledrl.training.supervision import Curriculum
from tests.shares import of_all
from tests.training.small_runs import LENGTH, Digits, lively_policy


@pytest.mark.parametrize("longest", [None, 4])
def test_processes_share_the_examples_of_one(longest):
    policies = [lively_policy() for _ in range(2)]  # a tokenizer is for one thread

    def examples(size, share):
        made = Curriculum(Digits(), Elbo(draws=2), size, 5, LENGTH, 0, longest)
        return made.example(policies[share.rank], 3, share)

    [(sequences, corruption)] = of_all(1, lambda share: examples(4, share))
    parts = of_all(2, lambda share: examples(2, share))
    for name in ("prompt_ids", "prompt_mask", "completion_ids"):
        together = torch.cat([getattr(own, name) for own, _ in parts])
        assert torch.equal(together, getattr(sequences, name))
    assert torch.equal(torch.cat([own.mask for _, own in parts], 1), corruption.mask)
    assert torch.equal(torch.cat([own.weight for _, own in parts], 1), corruption.weight)


def test_no_prompt_is_judged_twice_and_none_is_left_out():
    task = Digits()
    sampler = SemiAutoregressive(length=LENGTH, block_length=3, steps=4)
    # 5 prompts, 2 for each of 3 processes: one batch, of which the last process has one
    judge = Validation(task, sampler, task.prompts("validation", 0, 0, 5), 2)
    policies = [lively_policy() for _ in range(3)]

    def judged(share):
        batches = judge.loader(share.processes)
        return [judge(policies[share.rank], batch, share) for batch in batches]

    [one] = of_all(1, judged)
    assert [len(part.texts) for part in one] == [2, 2, 1]
    texts = [text for part in one for text in part.texts]
    for [whole] in of_all(3, judged):
        assert list(whole.texts) == texts
        assert whole.rewards == [reward for part in one for reward in part.rewards]
    for parts in of_all(2, judged):  # 4 and 1: the second process has nothing of the last batch
        assert [text for part in parts for text in part.texts] == texts
