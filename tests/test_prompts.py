"""Prompts that are too long: left out and counted, never cut, the same after a resume."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path

import pytest
from safetensors.torch import load_file

from stabledrl.errors import UserError
from stabledrl.jobs.evaluate import evaluate
from stabledrl.jobs.generate import generate
from stabledrl.jobs.pretrain import pretrain
from stabledrl.jobs.score import score
from stabledrl.jobs.train import train
from stabledrl.models import llada
from stabledrl.prompts import PATIENCE, PromptLimit, PromptStream, fitting
from stabledrl.rollout import rendered
from stabledrl.types import Prompt
from tests.policies import LLADA, tiny_policy
from tests.training.small_runs import LENGTH, Digits, rows, small

LONGEST = 4  # "1=" and "2+3=" have up to 4 characters, "1+2+3=" has more; a character is a token
LIMIT = PromptLimit(LONGEST, LENGTH)
EVALUATE = {"samples": 0, "k": None, "lengths": None, "steps": None}


def short_ones(count: int) -> tuple[list[Prompt], int]:
    """The first prompts that fit, by their characters, and how many the task gave until then."""
    found: list[Prompt] = []
    for looked_at, prompt in enumerate(Digits().prompts("train", 0, 0, 10 * count), 1):
        if len(prompt.text) <= LONGEST:
            found.append(prompt)
        if len(found) == count:
            return found, looked_at
    raise AssertionError("too few")


def test_portions_are_those_of_a_task_without_the_long_ones():
    expected, looked_at = short_ones(20)
    policy, stream = tiny_policy(), PromptStream(Digits(), 0, 4, LIMIT)
    portions = [stream(policy, number) for number in range(5)]
    assert [prompt for portion in portions for prompt in portion.prompts] == expected
    assert sum(portion.dropped for portion in portions) == looked_at - 20 > 0
    assert [portion.end for portion in portions][-1] == looked_at


@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_portion_depends_on_its_number_alone(number):
    policy, stream = tiny_policy(), PromptStream(Digits(), 0, 4, LIMIT)
    in_order = [stream(policy, index) for index in range(8)]
    assert PromptStream(Digits(), 0, 4, LIMIT)(policy, number) == in_order[number]
    assert stream(policy, number) == in_order[number]


def test_without_a_limit_nothing_is_different():
    policy, stream = tiny_policy(), PromptStream(Digits(), 0, 4, PromptLimit(None, LENGTH))
    assert stream(policy, 2).prompts == Digits().prompts("train", 0, 8, 4)
    assert stream(policy, 2).dropped == 0


def test_the_models_context_is_a_limit_too():
    policy = tiny_policy()
    policy.backbone.config.max_position_embeddings = LENGTH + LONGEST
    for maximum in (None, 100):
        limit = PromptLimit(maximum, LENGTH)
        assert limit.tokens(policy) == LONGEST
        assert (
            limit.words(policy) == "the 4 that sampler.length=6 leaves in the model's context of 10"
        )
    assert PromptLimit(3, LENGTH).tokens(policy) == 3
    line = (
        r"sampler\.length=10 leaves no room for a prompt in the model's context of 10 tokens: lower"
    )
    with pytest.raises(UserError, match=line):
        PromptLimit(None, 10).tokens(policy)


def test_tokens_are_those_after_the_chat_template():
    policy = llada.load(str(LLADA))
    [prompt] = rendered(policy, [Prompt("a", "t", "a")])
    count = len(policy.encode([prompt.text])[0][0])
    assert count > 1
    asked = [Prompt("a", "t", "a"), Prompt("aa", "t", "aa")]
    assert fitting(policy, asked, PromptLimit(count, 8), "test").prompts == asked[:1]
    with pytest.raises(UserError, match=f"shortest has {count}"):
        fitting(policy, asked, PromptLimit(count - 1, 8), "test")


def test_if_none_fits_one_line_says_so():
    policy = tiny_policy()
    line = r"train: each of \d+ prompts has more tokens than rollout\.max_prompt_length=1 \(the "
    with pytest.raises(UserError, match=line + r"shortest has 2\): raise it") as refused:
        PromptStream(Digits(), 0, 4, PromptLimit(1, LENGTH))(policy, 0)
    assert f"{PATIENCE}" in str(refused.value)
    policy.backbone.config.max_position_embeddings = LENGTH + 1
    with pytest.raises(UserError, match=r"in the model's context of 7 \(.*: lower sampler\.length"):
        fitting(policy, Digits().prompts("test", 0, 0, 3), PromptLimit(None, LENGTH), "test")


def limited(directory: Path, *overrides: str, longest: int = LONGEST):
    return small(directory, f"rollout.max_prompt_length={longest}", *overrides)


def test_training_has_whole_phases_of_prompts_that_fit(tmp_path, caplog):
    two = ("trainer.max_epochs=2", "scheduler=constant")
    with caplog.at_level(logging.WARNING):
        train(limited(tmp_path / "whole", *two))
    assert sum("the next that fit" in message for message in caplog.messages) == 1
    assert any(message.startswith("validation: ") for message in caplog.messages)
    written = sorted((tmp_path / "whole/completions").glob("*.jsonl"))
    asked = [
        json.loads(line)["prompt"] for path in written for line in path.read_text().splitlines()
    ]
    expected, looked_at = short_ones(8)
    assert asked == [prompt.text for prompt in expected for _ in range(3)]
    counted = [
        float(row["train/dropped_prompts"])
        for row in rows(tmp_path / "whole")
        if "train/dropped_prompts" in row
    ]
    assert len(counted) == 2
    assert sum(counted) == looked_at - 8
    train(limited(tmp_path / "half", "trainer.max_epochs=1", "scheduler=constant"))
    train(limited(tmp_path / "half", *two, "ckpt_path=last"))
    one, other = (load_file(tmp_path / n / "model/model.safetensors") for n in ("whole", "half"))
    assert all(one[name].equal(other[name]) for name in one)


def test_the_warm_start_leaves_them_out_too(tmp_path, caplog):
    cfg = limited(tmp_path, "job=pretrain", "job.batch_size=4", "job.steps_per_epoch=1")
    with caplog.at_level(logging.WARNING):
        pretrain(cfg, batch_size=4, steps_per_epoch=1)
    assert any(message.startswith("train: prompts with more") for message in caplog.messages)


def test_an_evaluation_has_fewer_prompts_and_says_so(tmp_path, capsys):
    cfg = limited(tmp_path, "job=evaluate")
    evaluate(cfg, split="validation", prompts=20, **EVALUATE)
    fitting_ones = [
        prompt.text
        for prompt in Digits().prompts("validation", 0, 0, 20)
        if len(prompt.text) <= LONGEST
    ]
    path = tmp_path / "completions/length_6_steps_3_greedy.jsonl"
    asked = [json.loads(line)["prompt"] for line in path.read_text().splitlines()]
    assert asked == fitting_ones
    metrics = json.loads((tmp_path / "summary.json").read_text())["metrics"]
    assert metrics["dropped_prompts"] == 20 - len(fitting_ones) > 0
    assert f"{metrics['dropped_prompts']}, too long" in capsys.readouterr().out


def test_every_length_is_evaluated_on_the_same_prompts(tmp_path):
    cfg = small(tmp_path, "job=evaluate", "sampler.block_length=6", "sampler.steps=42")
    lengths = {**EVALUATE, "lengths": [126, 252]}  # of a context of 256: 4 are left
    evaluate(cfg, split="validation", prompts=20, **lengths)
    with (tmp_path / "evaluation.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2
    one, other = (
        (tmp_path / f"completions/length_{length}_steps_42_greedy.jsonl").read_text().splitlines()
        for length in (126, 252)
    )
    keys = [[json.loads(line)["key"] for line in lines] for lines in (one, other)]
    assert keys[0] == keys[1]
    assert 0 < len(keys[0]) < 20


def test_generations_of_a_task_leave_them_out_and_lines_of_a_file_are_refused(tmp_path):
    sizes = {"split": "validation", "prompts": 20, "samples": 1, "rows": 100}
    generate(limited(tmp_path, "job=generate"), input=None, **sizes)
    lines = (tmp_path / "generations.jsonl").read_text().splitlines()
    assert 0 < len(lines) < 20
    assert all(len(json.loads(line)["prompt"]) <= LONGEST for line in lines)
    given = tmp_path / "given.jsonl"
    given.write_text(
        '{"prompt": "1=", "completion": "1"}\n{"prompt": "1+2=3", "completion": "1"}\n'
    )
    line = (
        r"line 2: 'prompt' has 5 tokens, more than rollout\.max_prompt_length=4; shorten the "
        "prompt, or raise it"
    )
    with pytest.raises(UserError, match=line):
        generate(limited(tmp_path / "g", "job=generate"), input=str(given), **sizes)
    with pytest.raises(UserError, match=line):
        score(limited(tmp_path / "s", "job=score"), input=str(given), repeats=1, rows=4)
