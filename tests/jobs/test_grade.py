"""job=grade: the task's verdicts on texts, without a model; and the chain of the three jobs."""

import json
from dataclasses import replace

import pytest

from stabledrl.errors import UserError
from stabledrl.functional.evaluation import wilson_interval
from stabledrl.jobs.generate import generate
from stabledrl.jobs.grade import grade
from stabledrl.jobs.score import score
from stabledrl.rollout import records
from stabledrl.tasks.sudoku import Sudoku
from stabledrl.types import Prompt, RewardOutput
from tests.test_rollout import fabricated
from tests.training.small_runs import small

SUDOKU = {"_target_": "stabledrl.tasks.sudoku.Sudoku"}
COUNTDOWN = {"_target_": "stabledrl.tasks.countdown.Countdown"}
#   1 2 3 4 / 3 4 1 2 / 2 1 4 3 / 4 3 2 1 with four empty cells
DATA = {"puzzle": "1204301221404301", "solution": "1234341221434321"}
RIGHT, HALF, CHANGED = "1234 3412 2143 4321", "1234341221444341", "2234341221434321"


class Undecided:
    """A task that has no verdict on an empty completion."""

    name = "undecided"
    fixed_length = None

    def verify(self, prompt, completion):
        """None for nothing."""
        total = float(len(completion)) if completion else None
        return RewardOutput(total, total == 2, {}, "" if completion else "nothing there")


class Picky:
    """A task of one's own that needs a key."""

    name = "picky"
    fixed_length = None

    def verify(self, prompt, completion):
        """Whether it is there."""
        return RewardOutput(float(prompt.data["k"]), True, {})


def graded(directory, *contents, task=SUDOKU):
    directory.mkdir(exist_ok=True)
    path = directory / "in.jsonl"
    path.write_text("".join(json.dumps(content) + "\n" for content in contents))
    cfg = small(directory, "job=grade")
    cfg.task, cfg.model = task, {"_target_": "nowhere"}  # no model is loaded
    value = grade(cfg, input=str(path))
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["optimized_metric"] == value == summary["metrics"]["solved"]
    return read(directory / "grades.jsonl"), summary["metrics"]


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_right_and_wrong_sudokus(tmp_path, capsys):
    texts = (RIGHT, HALF, CHANGED, "")
    found, metrics = graded(tmp_path, *({"completion": t, "data": DATA, "id": t} for t in texts))
    assert [item["solved"] for item in found] == [True, False, False, False]
    assert [item["reward"] for item in found] == [1.0, 0.5, 0.0, 0.0]
    assert [item["id"] for item in found] == list(texts)
    assert found[1]["parts"]["cells"] == 0.5
    assert [item["reason"] for item in found] == ["", "", "a given cell changed", "empty answer"]
    assert metrics == {
        "completions": 4,
        "solved": 0.25,
        "solved_95": pytest.approx(list(wilson_interval(0.25, 4))),
        "reward": 0.375,
        "no_verdict": 0,
    }
    # Wilson by hand: (p + z²/2n ± z·√(p(1−p)/n + z²/4n²))/(1 + z²/n) = 0.0456 … 0.6994
    shown = capsys.readouterr().out
    assert "0.250 [0.046, 0.699]" in shown
    assert "grades " in shown


def test_lists_are_as_good_as_tuples_for_countdown(tmp_path):
    data = {"numbers": [3, 4, 5], "target": 17}
    found, _ = graded(
        tmp_path,
        {"completion": "3*4+5", "data": data},
        {"completion": "3+4+5", "data": data},
        task=COUNTDOWN,
    )
    assert [item["solved"] for item in found] == [True, False]
    assert [item["reward"] for item in found] == pytest.approx([1.0, 0.1])


def test_no_verdict_is_counted_and_left_out_of_the_mean(tmp_path):
    task = {"_target_": f"{__name__}.Undecided"}
    contents = [{"completion": text, "data": {}} for text in ("12", "", "1234")]
    found, metrics = graded(tmp_path, *contents, task=task)
    assert [item["reward"] for item in found] == [2.0, None, 4.0]
    assert (metrics["reward"], metrics["no_verdict"]) == (3.0, 1)
    assert metrics["solved"] == pytest.approx(1 / 3)
    _, metrics = graded(tmp_path / "none", contents[1], task=task)
    assert metrics["reward"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": {}}, "'data.puzzle' is not what the task 'sudoku' needs: Field required; choose"),
        (
            {"data": DATA | {"puzzle": "1200"}},
            "'data.puzzle' is not what the task 'sudoku' needs: ",
        ),
        ({"data": DATA | {"puzzle": 12}}, "'data.puzzle' is not what the task 'sudoku' needs: "),
        ({"data": DATA | {"solution": "1"}}, "'data.solution' is not what the task 'sudoku' needs"),
        (
            {"data": DATA | {"puzzle": DATA["solution"]}},
            "'data' is not what the task 'sudoku' needs: ",
        ),
        ({"task": "countdown"}, "it is of the task 'countdown', not of 'sudoku'; choose"),
    ],
    ids=str,
)
def test_data_that_do_not_do_are_told_with_their_line(tmp_path, change, words):
    good = {"completion": RIGHT, "data": DATA}
    with pytest.raises(UserError) as told:
        graded(tmp_path, good, good | change)
    assert f"in.jsonl, line 2: {words}" in str(told.value)
    assert "\n" not in str(told.value)
    assert len(read(tmp_path / "grades.jsonl")) == 1  # nothing is lost


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"numbers": [3, 4], "target": "7"}, "target"),
        ({"numbers": [3, 4], "target": {"a": 1}}, "target"),
        ({"numbers": ["3", "4"], "target": 7}, "numbers.0"),
        ({"numbers": [], "target": 7}, "numbers"),
        ({"target": 7}, "numbers"),
    ],
    ids=str,
)
def test_numbers_written_as_text_are_no_wrong_answer(tmp_path, data, key):
    with pytest.raises(UserError, match=rf"line 1: 'data\.{key}' is not what the task 'countdown'"):
        graded(tmp_path, {"completion": "3+4", "data": data}, task=COUNTDOWN)


def test_a_task_without_a_shape_says_itself_what_is_missing(tmp_path):
    task = {"_target_": f"{__name__}.Picky"}
    with pytest.raises(UserError, match=r"line 1: 'data' has no 'k', which the task 'picky' needs"):
        graded(tmp_path, {"completion": "", "data": {}}, task=task)


def test_generate_score_grade_each_reads_what_the_other_wrote(tmp_path):
    sizes = ("sampler.length=16", "sampler.block_length=16", "sampler.steps=4")
    cfgs = {name: small(tmp_path / name, f"job={name}", *sizes) for name in ("generate", "score")}
    for cfg in cfgs.values():
        cfg.task = SUDOKU
    asked = {"input": None, "split": "test", "prompts": 3, "samples": 2, "rows": 4}
    generate(cfgs["generate"], **asked)
    generations = tmp_path / "generate/generations.jsonl"
    score(cfgs["score"], input=str(generations), repeats=2, rows=4)
    scores = read(tmp_path / "score/scores.jsonl")
    # the text has as many tokens as were sampled
    assert [it["tokens"] for it in scores] == [it["tokens"] for it in read(generations)]
    found, metrics = graded(tmp_path / "grade", *scores)
    assert metrics["completions"] == 6
    assert [item["completion"] for item in found] == [item["completion"] for item in scores]
    assert all({"prompt", "key", "data", "value", "reward", "sample"} <= set(it) for it in found)


def test_completions_that_a_job_left_are_graded_again(tmp_path):
    """job=evaluate and training write lines that job=grade reads, with the verdicts they had."""
    prompt = Prompt("1204 3012 2140 4301", "sudoku", "k", DATA)
    verdicts = [Sudoku().verify(prompt, text) for text in (RIGHT, HALF)]
    group = {"prompts": [prompt], "group_size": 2, "texts": [RIGHT, HALF], "rewards": verdicts}
    rollout = replace(fabricated(), **group)
    found, _ = graded(tmp_path, *records(rollout))
    assert found == json.loads(json.dumps(records(rollout)))
