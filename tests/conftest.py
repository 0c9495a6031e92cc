"""Shapes are checked under pytest only: jaxtyping with beartype, hooked in before any import."""

from jaxtyping import install_import_hook

CHECKED = [
    "functional",
    "types",
    "policy",
    "models",
    "samplers",
    "estimators",
    "levels",
    "algorithm",
    "rollout",
    "diagnostics.probe",
]
install_import_hook([f"stabledrl.{room}" for room in CHECKED], "beartype.beartype")

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("STABLEDRL_ROOT", str(ROOT))


@pytest.fixture(autouse=True, scope="session")
def _deterministic() -> None:
    """Same numbers on every machine: one thread, deterministic algorithms."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Tests that do draw from the global generator draw the same."""
    torch.manual_seed(0)


FAKE_GROUPS = {
    "job": {"train": "{_target_: tests.fake_components.job}"},
    "model": {"tiny_sudoku": "{_target_: tests.fake_components.anything}"},
    "attention": {"bidirectional": "{_target_: tests.fake_components.anything}"},
    "adapter": {"none": "{_target_: tests.fake_components.anything}"},
    "acceleration": {"default": "{_target_: tests.fake_components.anything}"},
    "task": {"sudoku": "{_target_: tests.fake_components.Task, name: sudoku}"},
    "rollout": {
        "default": "{prompts_per_phase: 8, group_size: 4, inner_updates: 2, prompts_per_batch: 2,"
        " sampling_rows: 32, validation_prompts: 8}"
    },
    "ratio": {"per_token": "{_target_: tests.fake_components.anything}"},
    "estimator": {
        "elbo": "{_target_: tests.fake_components.Elbo, draws: 2, masking: '${masking.pattern}'}",
        "coupled": "{_target_: tests.fake_components.Coupled}",
    },
    "masking": {
        "uniform": "{pairing: independent, pairs: {_target_: tests.fake_components.anything},"
        " pattern: {_target_: tests.fake_components.Uniform}}",
        "block_random": "{pairing: independent, pairs: {_target_: tests.fake_components.anything},"
        " pattern: {_target_: tests.fake_components.BlockRandom, block_length: 4}}",
    },
    "clipping": {
        "unconditional": "{_target_: tests.fake_components.clip, _partial_: true, epsilon: 5.0}",
        "conditional": "{_target_: tests.fake_components.clip, _partial_: true, epsilon: 0.2}",
    },
    "normalization": {
        "self": "{_target_: tests.fake_components.normalize, _partial_: true}",
        "group": "{_target_: tests.fake_components.normalize, _partial_: true}",
        "batch_self": "{_target_: tests.fake_components.normalize_step, _partial_: true}",
    },
    "advantage": {
        "centered": "{_target_: tests.fake_components.anything}",
    },
    "group_filter": {"none": "{_target_: tests.fake_components.anything}"},
    "kl": {"none": "{_target_: tests.fake_components.anything}"},
    "sampler": {
        "semi_autoregressive": "{_target_: tests.fake_components.Sampler,"
        " length: 16, block_length: 4, steps: 8}"
    },
    "optimizer": {"adamw": "{_target_: tests.fake_components.anything}"},
    "scheduler": {"constant": "{_target_: tests.fake_components.anything}"},
    "trainer": {
        "cpu": "{_target_: tests.fake_components.Trainer, devices: 1, accumulate_grad_batches: 1}"
    },
    "callbacks": {"default": "{printing: {_target_: tests.fake_components.anything}}"},
    "logger": {"default": "{}"},
}


def chosen_by_presets() -> Iterator[tuple[str, str]]:
    """Group and option of everything that an algorithm's preset chooses."""
    for path in (ROOT / "conf/algorithm").glob("*.yaml"):
        for default in yaml.safe_load(path.read_text())["defaults"]:
            for words, option in (default if isinstance(default, dict) else {}).items():
                yield words.removeprefix("override /"), option


def build_house(conf: Path) -> Path:
    """A conf/ with the real config.yaml, paths, extras, help and algorithms, and fake groups.

    What a preset chooses and FAKE_GROUPS has not is the group's first fake option.
    """
    conf.mkdir()
    shutil.copy(ROOT / "conf/config.yaml", conf)
    for group in ("paths", "extras", "hydra", "algorithm"):
        shutil.copytree(ROOT / "conf" / group, conf / group)
    for group in ("experiment", "local"):
        (conf / group).mkdir()
    chosen = {}  # what config.yaml chooses, whatever it is called, is the first fake option
    for default in yaml.safe_load((conf / "config.yaml").read_text())["defaults"]:
        chosen |= default if isinstance(default, dict) else {}
    presets = list(chosen_by_presets())
    for group, options in FAKE_GROUPS.items():
        (conf / group).mkdir()
        first = next(iter(options.values()))
        named = [option for place, option in presets if place == group]
        others = dict.fromkeys([chosen.get(group, "unchosen"), *named], first)
        for option, text in {**others, **options}.items():
            body = f"# @package _global_\n{group}: {text}\n"
            (conf / group / f"{option}.yaml").write_text(body)
    return conf


@pytest.fixture(scope="session")
def shared_house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fake house that nobody changes."""
    return build_house(tmp_path_factory.mktemp("house") / "conf")


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A fake house of one's own."""
    return build_house(tmp_path / "conf")


Write = Callable[[str, str], None]


@pytest.fixture
def write(house: Path) -> Write:
    """Add a yaml file to the fake house: write("experiment/x.yaml", text)."""

    def add(name: str, text: str) -> None:
        path = house / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return add


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(house: Path, tmp_path: Path) -> Run:
    """Run run.py on the fake house, in an empty directory."""

    def with_arguments(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"}
        return subprocess.run(
            [sys.executable, str(ROOT / "run.py"), f"--config-path={house}", *arguments],
            cwd=tmp_path,
            env={**inherited, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return with_arguments
