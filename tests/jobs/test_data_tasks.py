"""Tasks of files in jobs: training on one, chat templates, grading, and no process left behind."""

import json
from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from stabledrl.errors import UserError
from stabledrl.jobs.grade import grade
from stabledrl.jobs.train import train
from stabledrl.rewards import worker_pool
from stabledrl.rollout import rendered
from stabledrl.types import Prompt
from tests.conftest import ROOT
from tests.policies import tiny_policy
from tests.training.small_runs import small


def written(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(path)


@pytest.fixture
def sums(tmp_path):
    """A hundred prompts in the characters of the tiny models."""
    items = ({"prompt": f"{number}+1=", "answer": number + 1} for number in range(100))
    return written(tmp_path / "sums.jsonl", items)


@pytest.fixture
def started(monkeypatch):
    """Every process of a worker pool."""
    processes = []
    popen = worker_pool.subprocess.Popen

    def noted(*arguments, **settings):
        process = popen(*arguments, **settings)
        if "stabledrl.rewards.worker" in arguments[0]:
            processes.append(process)
        return process

    monkeypatch.setattr(worker_pool.subprocess, "Popen", noted)
    return processes


def with_task(directory, name, *overrides, **settings):
    """The configuration of a small run with one of conf/task, some of its settings changed."""
    cfg = small(directory, *overrides)
    cfg.task = OmegaConf.merge(OmegaConf.load(ROOT / f"conf/task/{name}.yaml"), settings)
    return cfg


def ended(process):
    return process.poll() is not None


def test_grading_mathematics_leaves_no_process(tmp_path, sums, started):
    lines = [
        {"completion": text, "data": {"answer": "1/2"}} for text in (r"\boxed{0.5}", "2", "1/2")
    ]
    cfg = with_task(tmp_path, "jsonl", "job=grade", path=sums)
    path = written(tmp_path / "in.jsonl", lines)
    assert grade(cfg, input=path) == pytest.approx(2 / 3)
    assert started
    assert all(map(ended, started))
    bad = written(tmp_path / "bad.jsonl", [lines[0], {"completion": "1", "data": {"answer": 1}}])
    with pytest.raises(
        UserError, match=r"line 2: 'data\.answer' is not what the task 'jsonl' needs"
    ):
        grade(cfg, input=bad)
    assert all(map(ended, started))


def test_training_on_a_file_in_a_chat_template(tmp_path, sums, started, monkeypatch):
    template = "{% for m in messages %}({{ m['content'] }}){% endfor %}"
    policy = tiny_policy()
    policy.tokenizer.chat_template = template
    monkeypatch.setattr("stabledrl.jobs.train.build_policy", lambda cfg: policy)
    train(with_task(tmp_path / "run", "jsonl", path=sums, system_prompt="0", chat=True))
    assert started
    assert all(map(ended, started))
    lines = (tmp_path / "run/completions/phase_00000.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert first["prompt"].startswith("(0)(")
    assert first["prompt"].endswith("+1=)")
    assert set(first["parts"]) == {"correct", "format", "length"}


def test_a_model_without_chat_template_is_told():
    prompts = [Prompt("a", "t", "k"), Prompt("b", "t", "k", messages=(("user", "b"),))]
    policy = tiny_policy()
    with pytest.raises(UserError, match=r"has no chat template: set task\.chat=false"):
        rendered(policy, prompts)
    policy.tokenizer.chat_template = "{{ messages[0]['role'] }}:{{ add_generation_prompt }}"
    assert rendered(policy, prompts) == [prompts[0], replace(prompts[1], text="user:True")]
