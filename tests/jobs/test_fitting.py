"""A run killed inside a phase and resumed is the run that was never killed, bit for bit."""

import json
from pathlib import Path

import pytest
import torch

from stabledrl.errors import ConfigurationError, UserError
from stabledrl.jobs.train import train
from stabledrl.models.tiny import load
from tests.training.small_runs import CLOCK, Killed, rows, small

RUN = (
    "trainer.max_epochs=4",
    "trainer.accumulate_grad_batches=2",
    "rollout.prompts_per_batch=2",
    "scheduler=linear",
    "kl=k3",  # with a frozen reference, which no checkpoint holds
    "rollout.drift_every=1",
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four phases of two updates without a break."""
    directory = tmp_path_factory.mktemp("straight")
    train(small(directory, *RUN))
    return directory


def kill(directory: Path, step: int) -> None:
    bomb = [
        "+callbacks.bomb._target_=tests.training.small_runs.Bomb",
        f"+callbacks.bomb.step={step}",
    ]
    with pytest.raises(Killed):
        train(small(directory, *RUN, *bomb))


def newest(directory: Path) -> dict:
    [*_, path] = sorted((directory / "checkpoints").glob("phase_*.ckpt"))
    return torch.load(path, weights_only=True)


def same(left: object, right: object) -> bool:
    """Equality of nested values, bitwise for tensors."""
    if isinstance(left, torch.Tensor):
        return (
            isinstance(right, torch.Tensor)
            and left.dtype == right.dtype
            and torch.equal(left, right)
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same(value, right[key]) for key, value in left.items())
        )
    if isinstance(left, list | tuple):
        return (
            isinstance(right, list | tuple)
            and len(left) == len(right)
            and all(map(same, left, right))
        )
    return left == right


PARTS = ("state_dict", "optimizer_states", "lr_schedulers", "history", "phase", "global_step")


def equal_runs(left: Path, right: Path) -> None:
    assert rows(left) == rows(right)
    one, two = newest(left), newest(right)
    for part in PARTS:
        assert same(one[part], two[part]), part
    assert one["gradient_norms"] == two["gradient_norms"]
    assert one["callbacks"]["Guard"] == two["callbacks"]["Guard"]
    # as text: NaN, where something was not logged, does not equal itself
    assert str(one["callbacks"]["Stability"]) == str(two["callbacks"]["Stability"])
    weights = [(folder / "model/model.safetensors").read_bytes() for folder in (left, right)]
    assert weights[0] == weights[1]
    texts = [
        {path.name: path.read_text() for path in (folder / "completions").iterdir()}
        for folder in (left, right)
    ]
    assert len(texts[0]) == 4
    assert texts[0] == texts[1]
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (left, right)]
    for summary in summaries:
        final = summary["metrics"]["final"]
        summary["metrics"]["final"] = {k: v for k, v in final.items() if not k.startswith(CLOCK)}
    for key in ("metrics", "optimized_metric", "status", "collapse"):
        assert summaries[0][key] == summaries[1][key]


def test_the_run_is_worth_comparing(straight):
    found = rows(straight)
    updates = [row for row in found if "train/loss" in row]
    assert [row["step"] for row in updates] == list("01234567")
    assert [row["step"] for row in found if "val/reward" in row] == ["0", "4", "8"]
    assert len({row["train/grad_norm"] for row in updates}) == 8
    assert all(float(row["train/grad_norm"]) > 0 for row in updates)
    assert float(updates[-1]["train/kl"]) > 0
    assert len({row["train/learning_rate"] for row in updates}) > 4
    names = sorted(path.name for path in (straight / "checkpoints").iterdir())
    assert names == ["best.ckpt", "last.ckpt", "phase_00002.ckpt", "phase_00003.ckpt"]
    assert not [name for name in names if "=" in name]


@pytest.mark.parametrize("step", [5, 7])
def test_killed_inside_the_updates_of_a_phase_and_resumed(straight, tmp_path, step):
    kill(tmp_path, step)
    train(small(tmp_path, *RUN, "ckpt_path=last"))
    equal_runs(straight, tmp_path)
    left = tmp_path / "checkpoints"
    assert not list(left.glob("*-v*"))  # as Lightning names a second file of a name
    assert (left / "last.ckpt").resolve().name == "phase_00003.ckpt"


def test_killed_twice_with_a_half_written_checkpoint(straight, tmp_path, caplog):
    kill(tmp_path, 5)
    path = tmp_path / "checkpoints/phase_00001.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    kill_again = small(
        tmp_path,
        *RUN,
        "ckpt_path=last",
        "+callbacks.bomb._target_=tests.training.small_runs.Bomb",
        "+callbacks.bomb.step=7",
    )
    with pytest.raises(Killed):
        train(kill_again)
    assert "phase_00001.ckpt: not a readable checkpoint" in caplog.text
    train(small(tmp_path, *RUN, "ckpt_path=last"))
    equal_runs(straight, tmp_path)


def test_killed_and_begun_anew_nothing_of_the_killed_run_stays(straight, tmp_path):
    kill(tmp_path, 7)
    train(small(tmp_path, *RUN))
    equal_runs(straight, tmp_path)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["best.ckpt", "last.ckpt", "phase_00002.ckpt", "phase_00003.ckpt"]
    assert (tmp_path / "checkpoints/last.ckpt").resolve().name == "phase_00003.ckpt"


def test_resuming_a_finished_run_changes_nothing_and_returns_its_metric(straight, tmp_path):
    small_run = ("trainer.max_epochs=2",)
    first = train(small(tmp_path, *small_run))
    before, weights = rows(tmp_path), newest(tmp_path)["state_dict"]
    again = train(small(tmp_path, *small_run, "ckpt_path=last"))
    assert again == first
    assert rows(tmp_path) == before
    assert same(newest(tmp_path)["state_dict"], weights)


def test_a_finished_run_can_go_on_for_more_phases(straight, tmp_path):
    # a linear rate knows the end; only a constant one can go on as if nothing had ended
    schedule = [*(item for item in RUN if item != "scheduler=linear"), "scheduler=constant"]
    train(small(tmp_path / "a", *schedule))
    train(small(tmp_path / "b", *schedule, "trainer.max_epochs=2"))
    train(small(tmp_path / "b", *schedule, "ckpt_path=last"))
    equal_runs(tmp_path / "a", tmp_path / "b")


def test_a_checkpoint_beyond_the_end_is_refused(straight, tmp_path):
    path = straight / "checkpoints/phase_00003.ckpt"  # of the fourth phase
    with pytest.raises(UserError) as refused:
        train(small(tmp_path, *RUN, "trainer.max_epochs=3", f"ckpt_path={path}"))
    assert str(refused.value) == (
        f"trainer.max_epochs=3: {path} is after epoch 4; set at least that"
    )


def test_a_refused_checkpoint_leaves_the_record_of_the_run_as_it_was(tmp_path):
    train(small(tmp_path, "trainer.max_epochs=2"))
    names = ("summary.json", "config.yaml")
    before = [(tmp_path / name).read_text() for name in names]
    with pytest.raises(ConfigurationError):
        train(small(tmp_path, "trainer.max_epochs=1", "ckpt_path=last"))
    for path in (tmp_path / "checkpoints").glob("phase_*.ckpt"):
        path.write_bytes(b"broken")
    with pytest.raises(ConfigurationError):
        train(small(tmp_path, "trainer.max_epochs=2", "ckpt_path=last"))
    assert [(tmp_path / name).read_text() for name in names] == before


def test_the_saved_policy_is_the_trained_one(straight):
    policy = load(str(straight / "model"))
    trained = newest(straight)["state_dict"]
    for name, value in policy.state_dict().items():
        assert torch.equal(value, trained[f"policy.{name}"])


def test_a_checkpoint_of_another_directory_is_gone_on_from_without_alarm(straight, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in (straight / "checkpoints").iterdir()}
    path = straight / "checkpoints/phase_00002.ckpt"
    # without the guard whose count is in it, and with another rhythm of validations: warnings are
    # errors here
    changes = ("~callbacks.guard", "trainer.check_val_every_n_epoch=4", f"ckpt_path={path}")
    train(small(tmp_path, *RUN, *changes))
    updates = [row for row in rows(straight) if "train/loss" in row and int(row["step"]) > 5]
    found = [row for row in rows(tmp_path) if "train/loss" in row]
    for row in updates:
        del row["guard/nonfinite_updates"]
    assert found == updates
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["best.ckpt", "last.ckpt", "phase_00003.ckpt"]
    after = {path: path.stat().st_mtime_ns for path in (straight / "checkpoints").iterdir()}
    assert after == before


def test_a_checkpoint_of_another_job_is_refused(straight, tmp_path):
    path = tmp_path / "other.ckpt"
    content = newest(straight)
    del content["phase"]
    torch.save(content, path)
    with pytest.raises(UserError, match="another job"):
        train(small(tmp_path, *RUN, f"ckpt_path={path}"))


def test_without_callbacks_loggers_and_checkpoints_a_run_still_ends_well(tmp_path):
    cfg = small(tmp_path, "logger=none")
    cfg.callbacks = None
    assert train(cfg) is not None
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "summary.json", "model"}
