"""Where runs go, and which of them a command goes on with."""

from pathlib import Path

import pytest
import yaml

from stabledrl.directories import (
    last_directory,
    run_family,
    slug,
    sweep_directory,
)
from stabledrl.errors import UserError

CHOICES = {"job": "train", "algorithm": "grpo", "task": "a/b", "model": "x=1"}
SETTINGS = {"optimizer": {"lr": 0.1}, "trainer": {"max_epochs": 4}}


def run(family: Path, name: str, *checkpoints: str, lr: float = 0.1, epochs: int = 4) -> Path:
    """What a run leaves that matters here."""
    directory = family / name
    (directory / "checkpoints").mkdir(parents=True)
    settings = {"optimizer": {"lr": lr}, "trainer": {"max_epochs": epochs}}
    paths = {"run_dir": str(directory)}
    (directory / "config.yaml").write_text(yaml.safe_dump({**settings, "paths": paths}))
    for checkpoint in checkpoints:
        (directory / "checkpoints" / checkpoint).touch()
    return directory


def test_directories_are_named_without_an_equals_sign(tmp_path):
    family = run_family(str(tmp_path), CHOICES, 3)
    assert family == tmp_path / "train" / "grpo-a-b-x-1-s3"
    assert slug(None) == "None"
    assert slug("///") == "none"


def test_the_newest_run_of_these_settings_is_gone_on_with(tmp_path):
    run(tmp_path, "1", "phase_00003.ckpt")
    wanted = run(tmp_path, "2", "phase_00001.ckpt", epochs=2)  # a longer run now
    run(tmp_path, "3", "phase_00003.ckpt", lr=0.2)
    run(tmp_path, "4")  # killed before its first checkpoint
    run(tmp_path, "5", "best.ckpt")
    assert last_directory(tmp_path, SETTINGS) == str(wanted)


def test_where_there_is_none_the_nearest_is_named(tmp_path):
    with pytest.raises(UserError) as nothing:
        last_directory(tmp_path, SETTINGS)
    assert str(nothing.value) == (
        f"ckpt_path=last: no run of these settings with a checkpoint in {tmp_path} "
        "(ckpt_path=<file> goes on from any checkpoint)"
    )
    run(tmp_path, "1", "phase_00003.ckpt", lr=0.3)
    run(tmp_path, "2", "phase_00003.ckpt", lr=0.2)
    with pytest.raises(UserError, match=r"; the newest there, 2, has optimizer.lr=0.2, not 0.1 "):
        last_directory(tmp_path, SETTINGS)


@pytest.mark.parametrize("text", ["optimizer: {lr: 0.1", "optimizer: {lr: 0.1}\n", None])
def test_a_run_whose_configuration_cannot_be_read_is_passed_over(tmp_path, text):
    broken = run(tmp_path, "2", "phase_00003.ckpt") / "config.yaml"
    broken.unlink()
    if text is not None:
        broken.write_text(text)
    with pytest.raises(UserError, match=r"; the newest there, 2, has no readable config\.yaml \("):
        last_directory(tmp_path, SETTINGS)
    wanted = run(tmp_path, "1", "phase_00003.ckpt")
    assert last_directory(tmp_path, SETTINGS) == str(wanted)


def test_the_same_sweep_has_the_same_directory():
    named = sweep_directory("m", {"sweeps": "ablation"}, ["sweeps=ablation"])
    assert named == "m/ablation"
    first = sweep_directory("m", {}, ["seed=1,2", "clipping=none"])
    assert first == sweep_directory("m", {}, ["clipping=none", "seed=1,2", "extras.threads=1"])
    assert first != sweep_directory("m", {}, ["seed=1,2"])
    assert sweep_directory("m", {"experiment": "smoke"}, []).startswith("m/smoke-")
