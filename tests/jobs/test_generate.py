"""job=generate: completions of a file's prompts or the task's, the same whatever the batch."""

import json

import pytest

from stabledrl.config import build
from stabledrl.errors import UserError
from stabledrl.jobs import lines
from stabledrl.jobs.generate import generate
from stabledrl.randomness import keyed_generator
from stabledrl.rollout import collect
from tests.training.small_runs import LENGTH, Digits, small

FROM_TASK = {"input": None, "split": "validation", "prompts": 5, "samples": 3, "rows": 100}


def generated(directory, *overrides, **changes):
    cfg = small(directory, "job=generate", "model.seed=3", *overrides)
    assert generate(cfg, **FROM_TASK | changes) is None
    text = (directory / "generations.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def prompts_file(path, *contents):
    path.write_text("".join(json.dumps(content) + "\n" for content in contents))
    return str(path)


def test_the_tasks_prompts_are_completed_as_a_rollout_completes_them(tmp_path, capsys):
    found = generated(tmp_path)
    cfg = small(tmp_path / "other", "model.seed=3")
    task, policy = Digits(), build(cfg.model)
    items = task.prompts("validation", 0, 0, 5)
    rollout = collect(
        policy, build(cfg.sampler), task, items, 3, keyed_generator("generate", 0, 0), 7
    )
    assert [item["completion"] for item in found] == list(rollout.texts)
    assert [item["sample"] for item in found] == [0, 1, 2] * 5
    assert [item["key"] for item in found] == [item.key for item in items for _ in range(3)]
    assert {item["task"] for item in found} == {"digits"}
    assert {json.dumps(item["data"]) for item in found} == {"{}"}
    end = policy.facts.end_token_ids[0]
    for item, ids in zip(found, rollout.completions.ids.tolist(), strict=True):
        assert item["truncated"] == (end not in ids)
        assert item["tokens"] == (ids.index(end) + 1 if end in ids else LENGTH)
    metrics = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert (metrics["prompts"], metrics["completions"]) == (5, 15)
    assert metrics["mean_length"] == pytest.approx(sum(it["tokens"] for it in found) / 15)
    assert metrics["frac_truncated"] == pytest.approx(sum(it["truncated"] for it in found) / 15)
    assert "generations" in capsys.readouterr().out


def test_a_file_keeps_its_keys_and_needs_nothing_of_the_task(tmp_path):
    one, two = {"id": 7, "prompt": "1+2="}, {"prompt": "9=", "deep": {"a": [1]}, "sample": "x"}
    found = generated(tmp_path, input=prompts_file(tmp_path / "in.jsonl", one, two), samples=2)
    assert [item["prompt"] for item in found] == ["1+2=", "1+2=", "9=", "9="]
    assert (found[1]["id"], found[3]["deep"]) == (7, {"a": [1]})
    assert "data" not in found[0]
    assert [item["sample"] for item in found] == [0, 1, 0, 1]  # the job's keys win


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_change_nothing_and_the_seed_does(tmp_path, rows):
    whole = generated(tmp_path / "a")
    assert generated(tmp_path / "b", rows=rows) == whole
    assert generated(tmp_path / "c", "seed=1") != whole


def test_temperature_is_the_samplers(tmp_path):
    found = generated(tmp_path, "sampler.temperature=0")
    for first in range(0, 15, 3):
        assert len({item["completion"] for item in found[first : first + 3]}) == 1


def test_portions_draw_on_their_own_and_are_written_as_they_are_done(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "PORTION", 2)
    found = generated(tmp_path)
    assert len(found) == 15
    # the first portion is what a run of two prompts is
    assert generated(tmp_path / "two", prompts=2) == found[:6]


def test_a_fixed_length_is_no_truncation(tmp_path):
    cfg = small(tmp_path, "job=generate")
    cfg.task = {"_target_": "stabledrl.tasks.sudoku.Sudoku", "fixed_length": LENGTH}
    generate(cfg, **FROM_TASK)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["metrics"]["frac_truncated"] == 0


def test_a_prompt_the_tokenizer_does_not_know_is_refused(tmp_path):
    path = prompts_file(tmp_path / "in.jsonl", {"prompt": "1="}, {"prompt": "what?"})
    with pytest.raises(UserError, match="line 2: 'prompt' has characters that the model's token"):
        generated(tmp_path / "run", input=path)
