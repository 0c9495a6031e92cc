"""The estimator that CONTRIBUTING.md adds is one that works: three files, nothing else changed."""

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest

import stabledrl.estimators
from stabledrl.config import validate
from stabledrl.jobs.train import train
from tests.conftest import ROOT
from tests.jobs.test_conf import unexplained
from tests.training.small_runs import rows, small

SOURCE = "stabledrl/estimators/antithetic.py"
SWITCH = "conf/estimator/antithetic.yaml"
TEST = "tests/estimators/test_antithetic.py"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of conf/ to which the diff has been applied."""
    directory = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "conf", directory / "conf")
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    lines = [len(re.findall(r"(?m)^\+(?!\+\+ )", part)) for part in diff.split("\n+++ ")[1:]]
    assert lines == [int(count) for count in re.findall(r"@@ -0,0 \+1,(\d+) @@", diff)]
    subprocess.run(["git", "init", "-q", "."], cwd=directory, check=True)
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=directory, check=True)
    return directory


@pytest.fixture
def added(copy, monkeypatch):
    """The copy, with its estimator importable as ours are."""
    folders = [*stabledrl.estimators.__path__, str(copy / "stabledrl/estimators")]
    monkeypatch.setattr(stabledrl.estimators, "__path__", folders)
    yield copy
    sys.modules.pop("stabledrl.estimators.antithetic", None)


def test_the_diff_is_one_file_one_yaml_one_test(copy):
    shown = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all", "stabledrl", "tests"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.split() == ["??", SOURCE, "??", TEST]
    new = {path.name for path in (copy / "conf/estimator").iterdir()}
    assert new - {path.name for path in (ROOT / "conf/estimator").iterdir()} == {"antithetic.yaml"}
    assert unexplained((copy / SWITCH).read_text()) == []


def test_its_tests_pass(added, monkeypatch):
    specification = importlib.util.spec_from_file_location("test_antithetic", added / TEST)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    module.test_a_pair_hides_every_token_once_and_one_more()
    module.test_the_expectation_is_the_order_averaged_elbo(monkeypatch)


def test_it_trains_by_its_name(added, tmp_path):
    cfg = small(tmp_path, "estimator=antithetic", "estimator.draws=2", conf=added / "conf")
    validate(cfg)
    train(cfg)
    updates = [row for row in rows(tmp_path) if "train/loss" in row]
    assert all(float(row["train/grad_norm"]) > 0 for row in updates)


def test_the_added_files_are_written_as_ours_are(copy):
    command = [sys.executable, "-m", "ruff"]
    settings = ["--config", str(ROOT / "pyproject.toml")]
    # where the imports come from ruff cannot tell in the copy
    for check in (["check", "--ignore", "I001"], ["format", "--check"]):
        subprocess.run([*command, *check, *settings, SOURCE, TEST], cwd=copy, check=True)
