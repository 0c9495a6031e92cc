"""job=evaluate: pass@1 and pass@k at several settings, completions in files."""

import csv
import json
from dataclasses import replace

import pytest

from stabledrl.errors import ConfigurationError
from stabledrl.functional.evaluation import wilson_interval
from stabledrl.jobs.evaluate import evaluate
from stabledrl.types import RewardOutput
from tests.training.small_runs import Digits, small

ASKED = {
    "split": "validation",
    "prompts": 5,
    "samples": 0,
    "k": None,
    "lengths": None,
    "steps": None,
}


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def evaluated(directory, *overrides, **changes):
    """What the job returns, and the numbers of every setting."""
    rate = evaluate(small(directory, "job=evaluate", *overrides), **ASKED | changes)
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["optimized_metric"] == rate
    return rate, summary["metrics"]["settings"]


def test_numbers_follow_from_the_completions_in_the_files(tmp_path, capsys):
    rate, [numbers] = evaluated(tmp_path, samples=3)
    folder = tmp_path / "completions"
    greedy, sampled = (read(folder / f"length_6_steps_3_{n}.jsonl") for n in ("greedy", "sampled"))
    assert (len(greedy), len(sampled)) == (5, 15)
    assert [record["key"] for record in sampled[::3]] == [record["key"] for record in greedy]
    assert rate == numbers["greedy/solved"] == sum(record["solved"] for record in greedy) / 5
    assert (numbers["length"], numbers["steps"]) == (6, 3)
    for name, records in (("greedy", greedy), ("sampled", sampled)):
        mean = sum(record["reward"] for record in records) / len(records)
        assert numbers[f"{name}/reward"] == pytest.approx(mean)
    # with k samples, pass@k is the share of prompts solved by one of them at least, and pass@1 the
    # share of samples
    groups = [sampled[first : first + 3] for first in range(0, 15, 3)]
    passed = sum(any(record["solved"] for record in group) for group in groups) / 5
    assert numbers["sampled/pass_at_3"] == pytest.approx(passed)
    assert numbers["sampled/pass_at_3_95"] == pytest.approx(list(wilson_interval(passed, 5)))
    share = sum(record["solved"] for record in sampled) / 15
    assert numbers["sampled/pass_at_1"] == pytest.approx(share)
    assert numbers["greedy/solved_95"] == pytest.approx(list(wilson_interval(rate, 5)))
    shown = capsys.readouterr().out
    assert "greedy solve rate, validation" in shown
    assert "pass@3" in shown


def test_every_length_with_every_number_of_steps(tmp_path, capsys):
    changes = {"lengths": [6, 12], "steps": [2, 6], "samples": 2}
    _, settings = evaluated(tmp_path, **changes)
    pairs = [(6, 2), (6, 6), (12, 2), (12, 6)]
    assert [(numbers["length"], numbers["steps"]) for numbers in settings] == pairs
    for (length, steps), numbers in zip(pairs, settings, strict=True):
        name = f"length_{length}_steps_{steps}"
        assert (tmp_path / f"completions/{name}_sampled.jsonl").exists()
        # alone it gives the same, and the same again
        alone = (f"sampler.length={length}", f"sampler.steps={steps}")
        _, [again] = evaluated(tmp_path / name, *alone, samples=2)
        clock = ("greedy/seconds", "sampled/seconds")
        assert all(again[key] == value for key, value in numbers.items() if key not in clock)
    with (tmp_path / "evaluation.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["length"]), int(row["steps"])) for row in rows] == pairs
    for row, numbers in zip(rows, settings, strict=True):
        low, high = numbers["sampled/pass_at_2_95"]
        assert float(row["sampled/pass_at_2"]) == numbers["sampled/pass_at_2"]
        assert (
            float(row["sampled/pass_at_2_95_low"]),
            float(row["sampled/pass_at_2_95_high"]),
        ) == (
            low,
            high,
        )
    assert "4; the first, length 6, 2 steps" in capsys.readouterr().out


def test_a_block_that_is_the_whole_completion_follows_its_length(tmp_path):
    _, settings = evaluated(tmp_path, "sampler.block_length=${.length}", lengths=[4, 5])
    assert [numbers["length"] for numbers in settings] == [4, 5]


def test_what_does_not_fit_is_refused_all_together_before_anything_is_loaded(tmp_path):
    cfg = small(tmp_path, "job=evaluate")
    cfg.model = {"_target_": "nobody.may.load.this"}
    cfg.task = {"_target_": "nobody.may.build.this", "fixed_length": 5}
    with pytest.raises(ConfigurationError) as refused:
        evaluate(cfg, **ASKED | {"lengths": [4, 6, 9], "steps": [3, 7]})
    assert refused.value.faults == [
        "job.lengths=4 with job.steps=3 is too short: task.fixed_length=5 tokens are needed",
        "job.lengths=4 with job.steps=7 is too short: task.fixed_length=5 tokens are needed",
        "job.lengths=6 with job.steps=7: sampler.steps=7 must be a multiple of the 1 blocks and at "
        "most sampler.length=6",
        "job.lengths=9 with job.steps=3: sampler.block_length=6 does not divide sampler.length=9",
        "job.lengths=9 with job.steps=7: sampler.block_length=6 does not divide sampler.length=9",
    ]
    with pytest.raises(ConfigurationError, match=r"job\.k=4 is more than job\.samples=2: raise"):
        evaluate(cfg, **ASKED | {"samples": 2, "k": [1, 4]})
    assert not tmp_path.joinpath("config.yaml").exists()


@pytest.mark.parametrize(
    ("samples", "k", "expected"),
    [
        (0, None, []),
        (1, None, [1]),
        (6, None, [1, 2, 4, 6]),
        (8, None, [1, 2, 4, 8]),
        (4, [3, 1, 3], [1, 3]),
    ],
)
def test_several_k_at_once(tmp_path, samples, k, expected):
    _, [numbers] = evaluated(tmp_path, samples=samples, k=k, prompts=2, split="test")
    passes = [key for key in numbers if "pass_at" in key and not key.endswith("_95")]
    assert passes == [f"sampled/pass_at_{one}" for one in expected]
    sampled = tmp_path / "completions/length_6_steps_3_sampled.jsonl"
    assert sampled.exists() == (samples > 0)


class Undecided(Digits):
    """No verdict on the first of its prompts."""

    def verify(self, prompt, completion):
        """None, or that of `Digits`."""
        verdict = super().verify(prompt, completion)
        first = prompt.key == self.prompts("validation", 0, 0, 1)[0].key
        return RewardOutput(None, False) if first else replace(verdict, solved=True)


def test_no_verdict_is_counted_and_said(tmp_path, capsys):
    cfg = small(tmp_path, "job=evaluate")
    cfg.task = {"_target_": f"{__name__}.Undecided"}
    assert evaluate(cfg, **ASKED | {"samples": 2}) == 0.8
    [numbers] = json.loads((tmp_path / "summary.json").read_text())["metrics"]["settings"]
    assert (numbers["greedy/no_verdict"], numbers["sampled/no_verdict"]) == (1, 2)
    assert "3 completions, counted as unsolved" in capsys.readouterr().out


def test_the_same_again_and_another_split_differs(tmp_path):
    for name, split in (("a", "validation"), ("b", "validation"), ("c", "test")):
        evaluated(tmp_path / name, split=split, prompts=3, samples=2)
    name = "completions/length_6_steps_3_sampled.jsonl"
    one, two, other = (read(tmp_path / n / name) for n in "abc")
    assert one == two
    assert {record["key"] for record in one}.isdisjoint(record["key"] for record in other)
