"""The hash of a configuration follows what decides its numbers, and nothing else."""

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from stabledrl.fingerprint import difference, material, recorded, resolved_hash

ROOT = "/a/clone"


@pytest.fixture(autouse=True)
def clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLEDRL_ROOT", ROOT)


def configuration(*changes: str, root: str = ROOT) -> DictConfig:
    """A small configuration with values that refer to places, changed by dotted keys."""
    cfg = OmegaConf.create(
        {
            "seed": 0,
            "ckpt_path": None,
            "name": None,
            "tags": [],
            "paths": {"output_dir": "/out", "run_dir": "${paths.output_dir}/run"},
            "extras": {"threads": None},
            "logger": {"csv": {"save_dir": "${paths.run_dir}"}},
            "model": {"path": f"{root}/assets/tiny"},
            "callbacks": {"files": "${paths.run_dir}", "last": "${paths.run_dir}/checkpoints"},
            "trainer": {"max_epochs": 4, "clip": 1.0},
        }
    )
    return OmegaConf.merge(cfg, OmegaConf.from_dotlist(list(changes)))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "same",
    [
        "paths.output_dir=/else",
        "tags=[a]",
        "name=x",
        "extras.threads=1",
        "logger.csv.save_dir=/x",
        "ckpt_path=last",
    ],
)
def test_what_only_places_or_shows_results_changes_nothing(same):
    first = resolved_hash(configuration())
    assert len(first) == 8
    assert resolved_hash(configuration(same)) == first


@pytest.mark.parametrize(
    "other", ["seed=1", "trainer.clip=2.0", "trainer.max_epochs=5", "ckpt_path=/a.ckpt"]
)
def test_what_decides_numbers_changes_it(other):
    assert resolved_hash(configuration(other)) != resolved_hash(configuration())


def test_it_is_the_same_in_another_clone(monkeypatch):
    first = resolved_hash(configuration())
    monkeypatch.setenv("STABLEDRL_ROOT", "/b/other")
    assert resolved_hash(configuration(root="/b/other")) == first
    assert resolved_hash(configuration(root="/b/others")) != first  # only begins alike


def test_by_hand():
    assert material(configuration()) == {
        "seed": 0,
        "ckpt_path": None,
        "model": {"path": "/assets/tiny"},
        "callbacks": {"files": "", "last": "/checkpoints"},
        "trainer": {"max_epochs": 4, "clip": 1.0},
    }


@pytest.mark.parametrize("changes", [(), ("ckpt_path=last",)])
def test_a_recorded_configuration_reads_as_the_one_it_was(tmp_path: Path, changes):
    cfg = configuration(*changes)
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    assert recorded(tmp_path / "config.yaml") == material(configuration())


def test_a_model_that_another_run_left_in_the_output_directory_reads_as_itself(tmp_path: Path):
    cfg = configuration("paths.output_dir=outputs", "model.path=outputs/train/x/model")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    read = recorded(tmp_path / "config.yaml")
    assert read is not None
    assert read["model"] == {"path": "outputs/train/x/model"}
    assert read["callbacks"] == {"files": "", "last": "/checkpoints"}
    assert read == material(cfg)


@pytest.mark.parametrize(
    "text", ["", "seed: 0\n", "paths:\n", "- a\n", "a: [1", "\x00", "3", "hello"]
)
def test_what_is_no_configuration_of_a_run_is_none(tmp_path: Path, text):
    path = tmp_path / "config.yaml"
    assert recorded(path) is None
    path.write_text(text)
    assert recorded(path) is None


def test_the_first_difference_is_named_and_length_is_none():
    base = material(configuration())
    assert difference(base, base) is None
    assert difference(base, material(configuration("trainer.max_epochs=9"))) is None
    other = material(configuration("trainer.clip=0.5", "seed=3"))
    assert difference(base, other) == ("seed", 0, 3)
    assert difference(base, {**base, "new": {"key": 1}}) == ("new.key", None, 1)
