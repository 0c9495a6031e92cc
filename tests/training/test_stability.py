"""The live detector: what it remembers, says, stops, and that a kill changes none of it."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import lightning.pytorch as pl
import pytest

from stabledrl.diagnostics.alarms import WATCHED
from stabledrl.diagnostics.collapse import Signal, detect, phrase, plain
from stabledrl.diagnostics.series import phase_series, read_rows
from stabledrl.jobs.train import train
from stabledrl.training.callbacks.stability import Stability
from stabledrl.types import Prompt, RewardOutput
from tests.diagnostics.streams import healthy
from tests.training.small_runs import Digits, Killed, module, small, trainer

STEADY, PHASES = 12, 20  # phases that are paid for, and phases of the run


class Exhausted(Digits):
    """Solves everything for twelve phases and nothing afterwards, as the number of a prompt says.

    Prompts of a phase are numbered from 4·phase.
    """

    def prompts(self, split: str, seed: int, start: int, count: int) -> list[Prompt]:
        plain = super().prompts(split, seed, start, count)
        return [
            Prompt(item.text, item.task, item.key, {"number": start + index})
            for index, item in enumerate(plain)
        ]

    def verify(self, prompt: Prompt, completion: str) -> RewardOutput:
        solved = prompt.data["number"] < 4 * STEADY
        share = super().verify(prompt, completion).total or 0.0
        return RewardOutput(share + 9 * solved, solved, {"digits": share})


def configured(directory: Path, *overrides: str):
    settings = (f"trainer.max_epochs={PHASES}", "trainer.check_val_every_n_epoch=10", *overrides)
    cfg = small(directory, *settings)
    cfg.task = {"_target_": f"{__name__}.Exhausted"}
    return cfg


def collapse(directory: Path) -> dict:
    return json.loads((directory / "summary.json").read_text())["collapse"]


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory) -> Path:
    """A run that only warns."""
    directory = tmp_path_factory.mktemp("collapsed")
    train(configured(directory))
    return directory


# mean over ten phases 1 until phase 11, below one half with the sixth zero, in phase 17
LAST_HELD, FOUND = STEADY - 1, STEADY + 5


def test_the_summary_and_the_file_of_metrics_tell_the_same(collapsed):
    verdict = detect(phase_series(read_rows(collapsed / "metrics.csv")))
    assert verdict.collapsed
    assert verdict.began == LAST_HELD
    assert Signal("reward_collapse", STEADY) in verdict.signals
    assert collapse(collapsed) == plain(verdict)


def test_the_panel_says_when_it_began(tmp_path, capsys):
    train(configured(tmp_path, "trainer.max_epochs=2"))
    assert "collapse             none" in capsys.readouterr().out
    assert collapse(tmp_path) == {
        "collapsed": False,
        "began": None,
        "first_signal": None,
        "signals": [],
    }


def test_killed_and_resumed_it_comes_to_the_same_verdict(collapsed, tmp_path, caplog):
    bomb = ("+callbacks.bomb._target_=tests.training.small_runs.Bomb", "+callbacks.bomb.step=37")
    with pytest.raises(Killed):  # inside phase 18, after the alarm
        train(configured(tmp_path, *bomb))
    caplog.clear()
    train(configured(tmp_path, "ckpt_path=last"))
    assert collapse(tmp_path) == collapse(collapsed)
    assert "reward_collapse" not in caplog.text  # said before the kill


def test_stop_ends_training_and_keeps_the_best_checkpoint(collapsed, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        train(configured(tmp_path, "callbacks.stability.on_collapse=stop"))
    phases = {row["phase"] for row in read_rows(tmp_path / "metrics.csv") if "phase" in row}
    assert max(phases) == FOUND
    assert (tmp_path / "checkpoints/best.ckpt").exists()
    assert (tmp_path / f"checkpoints/phase_{FOUND:05d}.ckpt").exists()
    assert (tmp_path / "model").exists()
    verdict = collapse(tmp_path)
    assert (verdict["collapsed"], verdict["began"]) == (True, LAST_HELD)
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count(f"phase {FOUND}: reward_collapse, since phase {STEADY}") == 1
    assert [text for text in messages if text.startswith(f"training ends with phase {FOUND}")]


class Rows(pl.Callback):
    """Replaces what a phase logged by a stream."""

    def __init__(self, streams: dict) -> None:
        self.streams = streams

    def on_train_epoch_end(self, trainer, pl_module):
        at = pl_module.phase
        pl_module.rows = [{name: float(values[at]) for name, values in self.streams.items()}]


def test_every_alarm_is_said_once(caplog):
    streams = healthy(20)
    streams["train/grad_norm"][12:] *= 1000
    watch = Stability()
    with caplog.at_level(logging.WARNING):
        trainer(Rows(streams), watch, max_epochs=20).fit(module())
    messages = [r.getMessage() for r in caplog.records if "stability" in r.name]
    assert messages == ["phase 12: gradient_spike, since phase 12"]
    assert watch.verdict == detect(streams)


def test_phases_before_it_was_there_are_not_logged():
    watch, streams = Stability(), healthy(20)
    learner = module()
    learner.phase = 3  # as after a resume from a checkpoint without it
    trainer(Rows(streams), watch, max_epochs=1).fit(learner)
    rates = watch.series["train/solved"]
    assert [math.isnan(rate) for rate in rates] == [True, True, True, False]
    assert rates[3] == streams["train/solved"][3]
    other = Stability()
    other.load_state_dict(watch.state_dict())
    assert str(other.series) == str(watch.series)


def test_noise_of_a_low_solve_rate_does_not_stop_a_run():
    streams = {"train/solved": [0.02, 0.0] * 5 + [0.0] * 5 + [0.02] + [0.0] * 4}
    assert detect(streams).collapsed
    fitter = trainer(Rows(streams), Stability(on_collapse="stop"), max_epochs=20)
    fitter.fit(learner := module())
    assert learner.phase == 20


def test_everything_the_detector_reads_is_watched():
    assert set(healthy(2)) == set(WATCHED)


def test_phrases():
    assert phrase(detect({})) == "none"
    solved = [1.0] * 20 + [0.0] * 10
    spike = [1.0] * 15 + [1e6] * 15
    assert phrase(detect({"train/solved": solved, "train/grad_norm": spike})) == (
        "began in phase 19, first signal gradient_spike (phase 15)"
    )
    assert phrase(detect({"train/grad_norm": spike})) == (
        "none, first signal gradient_spike (phase 15)"
    )
