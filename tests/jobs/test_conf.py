"""Every yaml of conf/ and sweeps/ composes into something that can run, and explains itself."""

from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from stabledrl.config import register_resolvers, validate
from tests.conftest import ROOT

CONF = ROOT / "conf"
FILES = sorted([*CONF.glob("*.yaml"), *CONF.glob("*/*.yaml"), *ROOT.glob("sweeps/**/*.yaml")])
AGENTS = sorted(ROOT.glob("sweeps/wandb/*.yaml"))  # no options of Hydra's
OPTIONS = [path for path in FILES if path.parent not in (CONF, CONF / "local", AGENTS[0].parent)]
PRESETS = ("algorithm", "experiment")
MACHINERY = ("_target_", "_partial_", "_convert_", "_args_", "_self_")


def name(path: Path) -> str:
    return f"{path.parent.name}={path.stem}"


@pytest.fixture(scope="module")
def chosen() -> DictConfig:
    """What a run without arguments is."""
    return composed()


def composed(*overrides: str, hydra: bool = False) -> DictConfig:
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides), return_hydra_config=hydra)


def test_a_run_without_arguments_validates(chosen):
    validate(chosen)


# Options that are made for another option than the one a run without arguments has.
TOGETHER = {
    "normalization=sequence_token_mean": "ratio=sequence",
    "normalization=fixed_length": "ratio=sequence",
    "normalization=token": "ratio=sequence",
    "ratio=token": "estimator=mean_field",
    "kl=k3_d1": "estimator=mean_field",
    "kl=k3_diffucoder": "estimator=mean_field",
    "kl=k3_tracerl": "estimator=mean_field",
    "attention=staircase": "model=tiny_block",
    "attention=block_separate": "model=tiny_block",
    "sampler=block": "model=tiny_block",
    # loads, but is neither sampled nor scored yet
    "model=fast_dllm_v2_1_5b": "job=grade",
    "model=fast_dllm_v2_7b": "job=grade",
}


@pytest.mark.parametrize("path", OPTIONS, ids=name)
def test_every_option_composes_and_validates(path, chosen, monkeypatch):
    others = TOGETHER.get(name(path), "").split()
    paths = [path, *(CONF / f"{option.replace('=', '/')}.yaml" for option in others)]
    texts = [each.read_text() for each in paths]
    if any("# @package" in text or "\ndefaults:" in text for text in texts):
        validate(composed(name(path), *others))
    else:  # Hydra puts such a file under its group as it is, but takes a third of a second
        for option in (name(path), *others):
            group, _, stem = option.partition("=")
            monkeypatch.setitem(chosen, group, OmegaConf.load(CONF / group / f"{stem}.yaml"))
        validate(chosen)


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("path", AGENTS, ids=name)
def test_what_a_wandb_agent_starts_composes_and_validates(path, place):
    sweep = yaml.safe_load(path.read_text())
    assert (ROOT / sweep["program"]).exists()
    *machinery, rest = [word for word in sweep["command"] if word.startswith("${")]
    assert machinery == ["${env}", "${interpreter}", "${program}"]
    assert rest == "${args_no_hyphens}"
    fixed = [word for word in sweep["command"] if not word.startswith("${")]
    drawn = {key: item["values"][place] for key, item in sweep["parameters"].items()}
    cfg = composed(*fixed, *(f"{key}={value}" for key, value in drawn.items()))
    validate(cfg)
    assert sweep["metric"]["name"] == cfg.optimized_metric
    assert cfg.logger.wandb.group == sweep["name"] == path.stem
    assert cfg.logger.wandb.project == sweep["project"]
    assert not cfg.logger.wandb.offline
    for key, value in drawn.items():  # groups leave what they chose, presets nothing of their name
        if not OmegaConf.is_dict(OmegaConf.select(cfg, key)) and key not in PRESETS:
            assert OmegaConf.select(cfg, key) == value


def test_every_sweep_can_be_run_by_agents():
    local = {path.stem for path in ROOT.glob("sweeps/*.yaml")}
    assert {path.stem for path in AGENTS} == local


@pytest.mark.parametrize("path", AGENTS, ids=name)
def test_agents_run_what_the_sweep_runs(path):
    agent = yaml.safe_load(path.read_text())
    sweep = composed(f"sweeps={path.stem}", hydra=True)
    varied = {
        key: [yaml.safe_load(value) for value in str(values).split(",")]
        for key, values in sweep.hydra.sweeper.params.items()
    }
    assert {key: item["values"] for key, item in agent["parameters"].items()} == varied
    words = [word for word in agent["command"] if not word.startswith(("${", "logger."))]
    assert settings(composed(*words)) == settings(sweep)


def settings(cfg: DictConfig) -> dict[str, object]:
    """What a run does, unresolved: not where it is written, nor under which name."""
    plain = OmegaConf.to_container(cfg)
    assert isinstance(plain, dict)
    return {key: value for key, value in plain.items() if key not in ("hydra", "sweeps")}


def test_config_yaml_chooses_an_option_of_every_group():
    chosen = {
        group.removeprefix("optional ")
        for default in yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
        if isinstance(default, dict)
        for group in default
    }
    groups = {path.name for path in CONF.iterdir() if path.is_dir()} - {"hydra"}
    assert groups <= chosen


def unexplained(text: str) -> list[str]:
    """Keys without a comment.

    A comment explains the key below it with all that belongs to it, and neighbours that follow
    without a line in between. A heading may leave it to the comments of its keys.
    """
    found, depth, lines = [], 99, [line for line in text.splitlines() if line.strip()]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped.startswith("#"):
            depth = indent
            continue
        if indent < depth:  # what follows lies outside of what the comment was about
            depth = 99
        key, _, value = stripped.removeprefix("- ").partition(":")
        heading = not value and following.strip().startswith("#")
        if depth == 99 and not heading and not key.startswith(MACHINERY) and key != "defaults":
            found.append(line)
    return found


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_file_says_what_it_is_and_explains_its_keys(path):
    text = path.read_text()
    lines = [line for line in text.splitlines() if line != "# @package _global_"]
    assert lines[0].startswith("# ")
    assert unexplained(text) == []


def test_the_check_finds_keys_without_a_comment():
    assert unexplained("# what\na:\n  b: 1\nc: 2\n") == []
    assert unexplained("a: 1\n# what\nb: 2\n") == ["a: 1"]
    assert unexplained("_target_: x\na:\n  # what\n  b: 1\nc: 2\n") == ["c: 2"]
