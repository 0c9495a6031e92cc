"""Completions in files and in the terminal, and what stands behind the progress bar."""

import json

import pytest
import torch

from stabledrl.rollout import Rollout
from stabledrl.training.callbacks.completions import Completions, table
from stabledrl.training.callbacks.progress import Progress
from stabledrl.types import Completions as Tokens
from stabledrl.types import Prompt, RewardOutput, Sequences
from tests.training.small_runs import module, trainer


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_nth_phase_leaves_a_record_per_completion(tmp_path, capsys):
    trainer(Completions(str(tmp_path), every=2, shown=3), max_epochs=3).fit(module())
    folder = tmp_path / "completions"
    assert sorted(path.name for path in folder.iterdir()) == [
        "phase_00000.jsonl",
        "phase_00002.jsonl",
    ]
    learner = module()
    rollout = learner.collector(learner.policy, None, 0).rollout
    found = read(folder / "phase_00000.jsonl")
    assert len(found) == 12  # four prompts, three completions each
    assert [record["completion"] for record in found] == rollout.texts
    assert [record["prompt"] for record in found[::3]] == [p.text for p in rollout.prompts]
    of_prompt = {"prompt", "key", "task", "data"}
    of_verdict = {"reward", "solved", "parts", "reason"}
    assert set(found[0]) == of_prompt | {"completion"} | of_verdict
    assert found[0]["reward"] == rollout.rewards[0].total == found[0]["parts"]["digits"]
    shown = capsys.readouterr().out
    assert "phase 0: sampled completions" in shown
    assert "phase 2: sampled completions" in shown
    assert "phase 1" not in shown


def test_no_rows_no_table(tmp_path, capsys):
    trainer(Completions(str(tmp_path), every=1, shown=0)).fit(module())
    assert capsys.readouterr().out == ""
    assert (tmp_path / "completions/phase_00000.jsonl").exists()


@pytest.mark.parametrize("text", ["[/] \\boxed{1} [red]x[/blue]", "\x1b[2J", "", "a\nb", "[bold"])
def test_no_completion_breaks_the_table(text, capsys):
    from rich.console import Console

    ids = torch.zeros(2, 1, dtype=torch.long)
    mask = torch.ones(2, 1, dtype=torch.bool)
    rollout = Rollout(
        prompts=[Prompt(text, "task", "key")],
        group_size=2,
        sequences=Sequences(ids, mask, ids, mask),
        completions=Tokens(ids, ids, ids.float(), 1.0),
        texts=[text, "second"],
        rewards=[RewardOutput(None, False), RewardOutput(1.0, True)],
        sampling_s=0.0,
        grading_s=0.0,
    )
    Console(width=200).print(table(rollout, 7, 4))
    shown = capsys.readouterr().out
    assert "none" in shown
    assert "second" not in shown  # one completion per prompt
    if text.startswith("["):
        assert text in shown


def test_the_bar_shows_reward_and_no_version_number(capsys):
    learner, bar = module(), Progress()
    fitter = trainer(bar, enable_progress_bar=True)
    fitter.fit(learner)
    metrics = bar.get_metrics(fitter, learner)
    assert {"train/reward", "train/solved", "train/grad_norm"} <= set(metrics)
    assert "v_num" not in metrics
