"""job=dashboard: a file where there is no server, and the same workspace from it where there is."""

import json
import os
from pathlib import Path

import pytest
import wandb
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from wandb_workspaces.workspaces import Workspace

from stabledrl.diagnostics.dashboard import Dashboard, Panel, Section
from stabledrl.errors import ConfigurationError, UserError
from stabledrl.jobs import workspace as building
from stabledrl.jobs.dashboard import dashboard, read
from tests.training.small_runs import small

ARMS = ["choices/clipping", "masking.pairing"]


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No account, and the options that Hydra would know."""
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/proc/none")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    wandb.teardown()  # it reads the environment once
    chosen = {"runtime": {"choices": {"clipping": "none", "normalization": "self"}}}
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: OmegaConf.create(chosen))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[Workspace]:
    """A server that accepts everything; what it was given."""
    saved: list[Workspace] = []

    def save(self: Workspace) -> Workspace:
        self._internal_name = "nw-abc-v"
        saved.append(self)
        return self

    monkeypatch.setattr(wandb, "login", lambda **_: True)
    monkeypatch.setattr(wandb, "Api", lambda: type("Api", (), {"default_entity": "me"})())
    monkeypatch.setattr(Workspace, "save", save)
    monkeypatch.setattr(Workspace, "url", property(lambda self: f"https://w/{self.entity}"))
    return saved


def run(directory: Path, **changes: object) -> Path:
    cfg = small(directory, "job=dashboard")
    settings = {key: value for key, value in cfg.job.items() if key != "_target_"}
    dashboard(cfg, **{**settings, "arms": ARMS, **changes})
    return directory / "dashboard.json"


def contents(saved: Workspace) -> dict:
    """What is sent, without the names that are drawn anew for every panel."""
    spec = saved._spec
    for section in spec["spec"]["section"]["panelBankConfig"]["sections"]:
        for panel in section["panels"]:
            panel.pop("__id__")
    return spec


def test_without_a_server_there_is_a_file_and_one_line(tmp_path, caplog):
    path = run(tmp_path, sweep="ablation", name="Why?")
    written = read(path)
    assert written == Dashboard(None, "stabledrl", "Why?", tuple(ARMS), "ablation")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "no API key: run `wandb login`" in line
    assert f"python run.py job=dashboard job.specification={path}" in line
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_it_stays_offline_when_asked_to(tmp_path, caplog, server, monkeypatch, mode):
    run(tmp_path / "a", offline=True)
    monkeypatch.setenv("WANDB_MODE", mode)
    run(tmp_path / "b")
    assert server == []
    assert "job.offline=true" in caplog.messages[0]
    assert f"WANDB_MODE={mode}" in caplog.messages[1]


def test_the_file_gives_the_workspace_that_a_server_would_have_had(tmp_path, server, caplog):
    path = run(tmp_path / "away", offline=True, sweep="ablation")
    caplog.clear()
    run(tmp_path / "home", sweep="ablation")
    run(tmp_path / "later", specification=str(path), arms=["nonsense"], project="unused")
    at_once, later = server
    assert contents(at_once) == contents(later)
    assert caplog.messages == []
    assert read(tmp_path / "later/dashboard.json") == read(path)
    run(tmp_path / "team", specification=str(path), entity="team")
    assert server[-1].entity == "team"


def test_what_is_sent():
    panels = (Panel("a", ("x", "y"), log_scale=True), Panel("b", ("z",)))
    described = Dashboard("us", "p", "n", tuple(ARMS), "pairing", "s", (Section("T", panels, 2),))
    sent = building.workspace(described, "us")._spec
    assert (sent["entity"], sent["project"], sent["displayName"]) == ("us", "p", "n")
    part = sent["spec"]["section"]
    (section,) = part["panelBankConfig"]["sections"]
    assert section["name"] == "T"
    assert not section["isOpen"]
    assert section["flowConfig"]["columnsPerPage"] == 2
    assert section["flowConfig"]["rowsPerPage"] == 1
    first, second = [panel["config"] for panel in section["panels"]]
    assert first["metrics"] == ["x", "y"]
    assert first["yLogScale"]
    assert not second.get("yLogScale")
    assert first["xAxis"] == second["xAxis"] == part["settings"]["xAxis"] == "s"
    (runs,) = part["runSets"]
    # W&B keeps a run's configuration as {top-level key: {"value": …}}
    keys = [(key["section"], key["name"]) for key in runs["grouping"]]
    assert keys == [("config", "choices/clipping.value"), ("config", "masking.value.pairing")]
    (only,) = runs["filters"]["filters"]
    assert (only["key"], only["op"]) == ({"section": "run", "name": "group"}, "=")
    assert only["value"] == "pairing"


def test_a_server_that_refuses_leaves_the_file(tmp_path, server, monkeypatch, caplog):
    def refuse(self: Workspace) -> None:
        raise ValueError("project\nnot found")

    monkeypatch.setattr(Workspace, "save", refuse)
    assert read(run(tmp_path)).arms == tuple(ARMS)
    assert "ValueError: project not found" in caplog.text


def test_settings_of_groups_that_an_agent_varies_tell_arms_apart(tmp_path):
    run(tmp_path, arms=["settings/clipping.epsilon"])
    assert json.loads((tmp_path / "dashboard.json").read_text())["arms"] == [
        "settings/clipping.epsilon"
    ]


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("choices/cliping", "did you mean 'choices/clipping'?"),
        ("masking.pairings", "did you mean 'masking.pairing'?"),
        ("clipping", ""),
    ],
)
def test_a_key_that_no_run_logs_is_refused(tmp_path, key, hint):
    with pytest.raises(ConfigurationError, match=f"job.arms: {key} is no single value") as refused:
        run(tmp_path, arms=[*ARMS, key])
    assert hint in str(refused.value)
    assert not (tmp_path / "dashboard.json").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "the file: Invalid JSON"),
        ('{"project": "p"}', "entity: Field required"),
        (
            '{"entity": null, "project": "p", "name": "n", "arms": [], "sweeps": "x"}',
            "sweeps: Unexpected keyword argument",
        ),
    ],
)
def test_a_file_that_is_no_dashboard_is_refused(tmp_path, text, expected):
    path = tmp_path / "dashboard.json"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        run(tmp_path / "run", specification=str(path))
    assert str(refused.value).startswith(f"job.specification={path}: {expected}")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read(tmp_path / "none.json")
