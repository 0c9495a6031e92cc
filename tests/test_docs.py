"""docs/metrics.md and the keys of a run are the same, docs/paper-index.md and the presets too."""

import csv
import itertools
import re

import pytest
import yaml

from stabledrl.diagnostics.alarms import ALARMS
from stabledrl.diagnostics.dashboard import Dashboard
from stabledrl.jobs.train import train
from tests.conftest import ROOT
from tests.training.small_runs import small


def documented() -> list[str]:
    """Keys of the table; `{mean,max}` expanded, `{part}` left as a wildcard."""
    text = (ROOT / "docs/metrics.md").read_text()
    keys = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    return [key for written in keys for key in expanded(written)]


def expanded(key: str) -> list[str]:
    """`a/{b,c}_d` is `a/b_d` and `a/c_d`."""
    pieces = re.split(r"(\{[^}]*,[^}]*\})", key)
    choices = [piece[1:-1].split(",") if "," in piece else [piece] for piece in pieces]
    return ["".join(parts) for parts in itertools.product(*choices)]


def matches(key: str, pattern: str) -> bool:
    literal = (re.escape(piece) for piece in re.split(r"\{\w+\}", pattern))
    return re.fullmatch(r"[^/]+".join(literal), key) is not None


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The columns of metrics.csv after a run."""
    directory = tmp_path_factory.mktemp("run")
    train(small(directory, "rollout.drift_every=1"))
    with (directory / "metrics.csv").open(newline="") as file:
        return next(csv.reader(file))


def test_patterns():
    assert expanded("a/{b,c}_d") == ["a/b_d", "a/c_d"]
    assert expanded("a/{part}/x") == ["a/{part}/x"]
    assert matches("a/cells/x", "a/{part}/x")
    assert not matches("a/b/c/x", "a/{part}/x")
    assert len(documented()) > 30


def test_every_logged_key_is_documented(logged):
    assert [
        key
        for key in logged
        if key != "step" and not any(matches(key, pattern) for pattern in documented())
    ] == []


def test_every_documented_key_is_logged(logged):
    assert [
        pattern for pattern in documented() if not any(matches(key, pattern) for key in logged)
    ] == []


def test_every_panel_of_the_dashboard_shows_what_a_run_logs(logged):
    shown = Dashboard(entity=None, project="p", name="n", arms=()).metrics
    assert set(shown) <= set(logged)


def test_no_key_is_documented_twice():
    keys = documented()
    assert sorted(set(keys)) == sorted(keys)


def test_every_alarm_is_explained():
    _, text = (ROOT / "docs/metrics.md").read_text().split("## Alarms")
    explained = re.findall(r"\*\*(\w+)\*\*", text)
    assert sorted(explained) == sorted(alarm.__name__ for alarm in ALARMS)


def test_links_and_pictures_of_the_docs_exist():
    missing = [
        f"{page.name}: {target}"
        for page in sorted((ROOT / "docs").glob("*.md"))
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).is_file()
    ]
    assert missing == []


OFF = {"kl=none", "masking=uniform", "group_filter=none"}  # what the index leaves out


@pytest.mark.parametrize("path", sorted((ROOT / "conf/algorithm").glob("*.yaml")), ids=str)
def test_the_paper_index_has_every_preset_with_what_it_chooses(path):
    pages = (ROOT / "docs/paper-index.md").read_text().splitlines()
    (row,) = (line for line in pages if f"| `{path.stem}` |" in line)
    chosen = {
        f"{group.removeprefix('override /')}={option}"
        for entry in yaml.safe_load(path.read_text())["defaults"]
        if isinstance(entry, dict)
        for group, option in entry.items()
    }
    assert set(re.findall(r"`(\w+=\w+)`", row)) == chosen - OFF
