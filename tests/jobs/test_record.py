"""A run directory can be gone on with whenever the run in it was killed."""

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from stabledrl.fingerprint import material, recorded
from stabledrl.jobs.record import Record


def configuration(directory: Path, epochs: int) -> DictConfig:
    return OmegaConf.create(
        {
            "seed": 0,
            "paths": {"run_dir": str(directory)},
            "extras": {"threads": None, "print_config": False},
            "trainer": {"max_epochs": epochs},
        }
    )


def test_the_configuration_stands_in_the_directory_from_the_start(tmp_path):
    cfg = configuration(tmp_path, 4)
    Record(cfg)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert recorded(tmp_path / "config.yaml") == material(cfg)


def test_killed_while_it_is_written_anew_the_old_one_is_whole(tmp_path, monkeypatch):
    Record(configuration(tmp_path, 4))
    write = Path.write_text

    def killed(path: Path, text: str) -> int:
        write(path, text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        Record(configuration(tmp_path, 9))
    left = recorded(tmp_path / "config.yaml")
    assert left is not None
    assert left["trainer"] == {"max_epochs": 4}
