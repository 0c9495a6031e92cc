"""Loggers report; whatever they die of, the run goes on and nobody is asked anything."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.pytorch.loggers import WandbLogger
from omegaconf import DictConfig, OmegaConf

from stabledrl.jobs.loggers import (
    build_loggers,
    close_loggers,
    quieten_wandb,
    start_wandb,
    wandb_labels,
)
from stabledrl.jobs.train import train
from stabledrl.training.metrics_file import MetricsFile
from tests.conftest import ROOT
from tests.training.small_runs import small


class Broken:
    """A logger that cannot start."""

    def __init__(self) -> None:
        raise RuntimeError("no disk\nand no luck")


BROKEN = {"_target_": f"{__name__}.Broken"}


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[None]:
    """No account, no home directory that could be written, no memory of other tests."""
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/proc/none")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    wandb.teardown()  # it reads the environment once
    yield
    wandb.teardown()


def choice(tmp_path, offline: bool) -> DictConfig:
    """metrics.csv and W&B."""
    wandb = {
        "_target_": "lightning.pytorch.loggers.WandbLogger",
        "save_dir": str(tmp_path),
        "project": "stabledrl",
        "offline": offline,
    }
    file = {
        "_target_": "stabledrl.training.metrics_file.MetricsFile",
        "directory": str(tmp_path),
    }
    return OmegaConf.create({"seed": 3, "logger": {"wandb": wandb, "file": file}})


def test_a_run_goes_on_without_a_logger_that_cannot_start(tmp_path, caplog):
    cfg = small(tmp_path, "rollout.inner_updates=1")
    cfg.logger = {"broken": BROKEN, "off": None, **cfg.logger}
    assert train(cfg) is not None
    messages = [record.getMessage() for record in caplog.records if "is off" in record.msg]
    assert len(messages) == 1
    assert messages[0].startswith("logger broken is off: ")
    assert "no disk and no luck" in messages[0]
    assert (tmp_path / "metrics.csv").exists()


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_logger_at_all(tmp_path, nothing):
    assert build_loggers(OmegaConf.create({"logger": nothing}), tmp_path) == []


def test_without_wandb_installed_the_others_go_on(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", False)
    [logger] = build_loggers(choice(tmp_path, offline=True), tmp_path)
    assert isinstance(logger, MetricsFile)
    assert "logger wandb is off" in caplog.text


def test_online_without_an_account_asks_nothing_and_does_not_wait(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked something"))
    monkeypatch.setattr("getpass.getpass", lambda *_: pytest.fail("asked for a key"))
    start = time.perf_counter()
    [logger] = build_loggers(choice(tmp_path, offline=False), tmp_path)
    assert time.perf_counter() - start < 10
    assert isinstance(logger, MetricsFile)
    assert "logger wandb is off: RuntimeError: no API key: run `wandb login`" in caplog.text
    close_loggers()


def test_online_without_a_network_is_given_up_soon(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens there
    quieten_wandb(tmp_path)
    assert os.environ["WANDB_INIT_TIMEOUT"] == "20"
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")  # what the user has set is left alone
    start = time.perf_counter()
    [logger] = build_loggers(choice(tmp_path, offline=False), tmp_path)
    assert time.perf_counter() - start < 15
    assert isinstance(logger, MetricsFile)
    assert "logger wandb is off" in caplog.text
    assert os.environ["WANDB_INIT_TIMEOUT"] == "1"
    close_loggers()


def test_offline_the_run_knows_its_configuration(tmp_path, caplog):
    cfg = choice(tmp_path, offline=True)
    loggers = build_loggers(cfg, tmp_path)
    assert [type(logger) for logger in loggers] == [WandbLogger, MetricsFile]
    run = loggers[0].experiment
    assert (run.config["seed"], run.config["logger"]["wandb"]["offline"]) == (3, True)
    assert run.name == "/".join(tmp_path.parts[-3:])
    assert run.group == tmp_path.parent.name
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"  # it would send them even offline
    loggers[0].log_metrics({"a": float("nan"), "b": float("inf")}, 1)
    close_loggers()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert "is off" not in caplog.text


def test_settings_of_a_group_that_an_agent_has_locked_are_logged_beside_it(tmp_path):
    group = {"_target_": "x.clip", "epsilon": 0.2}
    cfg = OmegaConf.merge(choice(tmp_path, offline=True), {"clipping": group, "ratio": group})
    logger = WandbLogger(save_dir=str(tmp_path), offline=True)
    run = logger.experiment
    run.config.update_locked({"clipping": "conditional", "seed": 7}, user="sweep")
    start_wandb(logger, cfg)
    assert (run.config["clipping"], run.config["seed"]) == ("conditional", 7)
    assert run.config["settings/clipping"] == group
    assert run.config["ratio"] == group
    assert "settings/ratio" not in run.config  # nobody varies it
    close_loggers()


@pytest.mark.parametrize(("name", "expected"), [(None, "a/b/c"), ("mine", "mine")])
def test_the_shipped_settings_carry_name_and_tags(tmp_path, name, expected):
    given = {"seed": 3, "name": name, "tags": ["one", "two"], "paths": {"run_dir": str(tmp_path)}}
    cfg = OmegaConf.create({**given, "logger": OmegaConf.load(ROOT / "conf/logger/wandb.yaml")})
    [logger] = build_loggers(cfg, Path("/out/a/b/c"))
    run = logger.experiment
    assert (run.name, run.tags, run.group) == (expected, ("one", "two"), "b")
    close_loggers()


GRPO = {"job": "train", "algorithm": "grpo", "task": "sudoku", "model": "tiny", "sweeps": None}


@pytest.mark.parametrize(
    ("mode", "choices", "node", "expected"),
    [
        (
            RunMode.RUN,
            GRPO,
            {},
            {"name": "train/grpo-s0/12-00", "group": "grpo-sudoku-tiny", "job_type": "train"},
        ),
        (
            RunMode.MULTIRUN,
            GRPO,
            {},
            {"name": "grpo-s0/12-00", "group": "grpo-sudoku-tiny", "job_type": "train"},
        ),
        (
            RunMode.MULTIRUN,
            GRPO | {"sweeps": "seeds"},
            {},
            {"name": "grpo-s0/12-00", "group": "seeds", "job_type": "train"},
        ),
        (RunMode.RUN, GRPO, {"name": "mine", "group": "ours", "job_type": "x"}, {}),
    ],
)
def test_a_run_is_named_and_grouped(monkeypatch, mode, choices, node, expected):
    context = OmegaConf.create({"mode": mode, "runtime": {"choices": choices}})
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: context)
    wandb = OmegaConf.create({"_target_": "lightning.pytorch.loggers.WandbLogger", **node})
    directory = Path("/out/train/grpo-s0/12-00")
    assert wandb_labels(wandb, directory) == expected
    csv = OmegaConf.create({"_target_": "stabledrl.training.metrics_file.MetricsFile"})
    assert wandb_labels(csv, directory) == {}
