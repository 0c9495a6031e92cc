"""job=evaluate: greedy solve rate and pass@k of a policy, completions in files."""

import json

import pytest

from stabledrl.functional.evaluation import wilson_interval
from stabledrl.jobs.evaluate import evaluate
from tests.training.small_runs import small


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_numbers_follow_from_the_completions_in_the_files(tmp_path, capsys):
    rate = evaluate(small(tmp_path, "job=evaluate"), split="validation", prompts=5, k=3)
    greedy, sampled = (read(tmp_path / f"completions/{n}.jsonl") for n in ("greedy", "sampled"))
    assert (len(greedy), len(sampled)) == (5, 15)
    assert [record["key"] for record in sampled[::3]] == [record["key"] for record in greedy]
    summary = json.loads((tmp_path / "summary.json").read_text())
    metrics = summary["metrics"]
    assert summary["optimized_metric"] == rate == metrics["greedy/solved"]
    for name, records in (("greedy", greedy), ("sampled", sampled)):
        for key, field in (("solved", "solved"), ("reward", "reward")):
            mean = sum(record[field] for record in records) / len(records)
            assert metrics[f"{name}/{key}"] == pytest.approx(mean)
    # with k samples, pass@k is the share of prompts solved by one of them at least
    groups = [sampled[first : first + 3] for first in range(0, 15, 3)]
    passed = sum(any(record["solved"] for record in group) for group in groups) / 5
    assert metrics["sampled/pass_at_3"] == pytest.approx(passed)
    assert metrics["greedy/solved_95"] == pytest.approx(list(wilson_interval(rate, 5)))
    shown = capsys.readouterr().out
    assert "greedy solve rate, validation" in shown
    assert "pass_at_3" in shown


@pytest.mark.parametrize("k", [0, 1])
def test_without_k_only_greedy(tmp_path, k):
    evaluate(small(tmp_path, "job=evaluate"), split="test", prompts=2, k=k)
    metrics = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert not [name for name in metrics if "pass" in name]
    assert (tmp_path / "completions/sampled.jsonl").exists() == (k == 1)


def test_the_same_again_and_another_split_differs(tmp_path):
    for name, split in (("a", "validation"), ("b", "validation"), ("c", "test")):
        evaluate(small(tmp_path / name, "job=evaluate"), split=split, prompts=3, k=2)
    one, two, other = (read(tmp_path / n / "completions/sampled.jsonl") for n in "abc")
    assert one == two
    assert {record["key"] for record in one}.isdisjoint(record["key"] for record in other)
