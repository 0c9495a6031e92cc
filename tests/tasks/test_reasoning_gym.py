"""reasoning-gym: its items by name, split by question, its scores, and what is refused."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("reasoning_gym")

from stabledrl.errors import UserError
from stabledrl.tasks.reasoning_gym import ReasoningGym
from stabledrl.tasks.splits import SPLITS


@pytest.fixture(scope="module")
def sums():
    task = ReasoningGym("chain_sum", {"max_terms": 2, "min_terms": 2}, time_limit_s=30)
    yield task
    task.close()


def test_items_and_scores(sums):
    prompts = sums.prompts("train", 0, 0, 4)
    for prompt in prompts:
        problem = (
            prompt.text.splitlines()[-1].rpartition(":")[2].removesuffix(" = ?").removesuffix("=")
        )
        words = problem.split()
        first, second = int(words[0]), int(words[2])
        right = first + second if words[1] == "+" else first - second
        assert prompt.data["answer"] == sums.solution(prompt) == str(right)
    texts = [sums.solution(prompts[0]), f"<answer>{prompts[1].data['answer']}</answer>", "", "x"]
    found = sums.verify_all(prompts, texts)
    assert [item.solved for item in found] == [True, True, False, False]
    assert [item.total for item in found[:2]] == [1.0, 1.0]
    assert all(0 <= item.total < 0.1 for item in found[2:])
    assert found[3] == sums.verify(prompts[3], "x")
    assert json.loads(json.dumps(dict(prompts[0].data))) == prompts[0].data


def test_streams_and_splits(sums):
    found = {split: sums.prompts(split, 0, 0, 60) for split in SPLITS}
    keys = [{prompt.key for prompt in prompts} for prompts in found.values()]
    assert not keys[0] & keys[1] | keys[0] & keys[2] | keys[1] & keys[2]
    whole = found["train"]
    assert whole == sums.prompts("train", 0, 0, 11) + sums.prompts("train", 0, 11, 49)
    assert whole != sums.prompts("train", 1, 0, 60)


def test_what_is_refused(sums):
    for settings, words in [
        ({"dataset": "chain_sums"}, "has no 'chain_sums'; did you mean 'chain_sum"),
        ({"dataset": "n_queens"}, "task.dataset=n_queens: reasoning-gym evaluates text in it"),
        ({"dataset": "chain_sum", "settings": {"terms": 2}}, "task.settings of chain_sum: .*terms"),
        ({"dataset": "chain_sum", "settings": {"min_terms": 9}}, "task.settings of chain_sum: "),
        (
            {"dataset": "composite", "settings": {"datasets": [{"name": "chain_sum"}]}},
            "task.settings of composite: ",
        ),
    ]:
        with pytest.raises(UserError, match=words):
            ReasoningGym(**settings)
    queens = ReasoningGym("n_queens", allow_execution=True).prompts("train", 0, 0, 1)[0]
    with pytest.raises(ValueError, match="an item of n_queens, not of chain_sum"):
        sums.verify(queens, "")


MADE_ELSEWHERE = """
from stabledrl.tasks.reasoning_gym import ReasoningGym
task = ReasoningGym("ransom_note", size=50, time_limit_s=30)
print([prompt.text for prompt in task.prompts("train", 0, 0, 3)])
task.close()
"""


def test_items_are_the_same_in_every_process():
    """This generator walks through sets, whose order Python changes with each process."""
    found = {
        subprocess.run(
            [sys.executable, "-c", MADE_ELSEWHERE],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "7")
    }
    assert len(found) == 1
    assert next(iter(found)) != "[]\n"


def test_items_that_draw_from_the_global_random_are_the_same_twice():
    task = ReasoningGym("list_functions", size=50, time_limit_s=30)
    first = task.prompts("train", 0, 0, 8)
    assert task.prompts("train", 0, 4, 4) == first[4:]
    task.close()
    assert task.prompts("train", 0, 0, 8) == first
    found = task.verify_all(first, [task.solution(prompt) for prompt in first])
    assert all(item.solved for item in found)
    task.close()


def test_a_data_set_is_made_before_the_first_item_is_asked_for(sums):
    """Some take longer to make than a score may take."""
    assert sums.pool.first == [
        "chain_sum",
        sums.prompts("train", 0, 0, 1)[0].data["settings"],
        0,
        None,
    ]


EVALUATING = (
    "string_insertion spiral_matrix binary_matrix n_queens propositional_logic simple_integration "
    "intermediate_integration polynomial_multiplication puzzle24 countdown"
)


@pytest.mark.parametrize("name", EVALUATING.split())
def test_scorers_that_evaluate_answers_are_known(name):
    with pytest.raises(UserError, match="evaluates text"):
        ReasoningGym(name)
