"""benchmarks/estimator_table.py and bypass.py on small folders, values by hand."""

import json
import math

import pytest
import yaml

from benchmarks.bypass import line
from benchmarks.estimator_table import (
    budget,
    curves,
    draw,
    efficiencies,
    estimator_name,
    read,
    table,
)

STD = {("elbo", 1): 2.0, ("elbo", 4): 1.0, ("stratified", 4): 0.5, ("exact", None): 0.0}


@pytest.fixture
def probes(tmp_path):
    """Two seeds; with seed 1 all is twice as wide. A draw is a forward pass."""
    found = []
    for seed in (0, 1):
        for (name, draws), std in STD.items():
            folder = tmp_path / f"{name}{draws}-{seed}"
            folder.mkdir()
            estimator = {"_target_": f"stabledrl.estimators.{name}.Any"}
            estimator |= {} if draws is None else {"draws": draws}
            settings = {"seed": seed, "estimator": estimator}
            (folder / "config.yaml").write_text(yaml.safe_dump(settings))
            std *= 1 + seed
            metrics = {
                "exact": {"completions": 8, "bias": 0.5 + seed, "bias_error": 0.3, "std": std},
                "evaluations": {
                    "completions": 8,
                    "std": std,
                    "group_std": std / 2,
                    "forwards": float(draws or 16),
                    "time": 1.5,
                },
            }
            (folder / "summary.json").write_text(json.dumps({"metrics": metrics}))
            found.append(read(folder))
    return found


def test_what_the_same_variance_costs(probes):
    # elbo: 4·1 = 1·4, whatever K; stratified: 0.25·4 = 1, a quarter, at either seed
    relative = efficiencies(probes)
    assert relative["elbo", "K=1"] == relative["elbo", "K=4"] == [1, 1]
    assert relative["stratified", "K=4"] == [0.25, 0.25]


def test_the_table(probes):
    # bias (0.5 + 1.5)/2 ± √(0.09 + 0.09)/2, std √((0.25 + 1)/2)
    row = "| `stratified` | K=4 | 2 | 4.00 | 1.50 | +1.000 ± 0.212 | 0.791 | 0.25 ± 0.00 | 0.50 |"
    assert row in table(probes)
    assert (
        "| `exact` |  | 2 | 16.00 | 1.50 | +1.000 ± 0.212 | 0.000 | 0.00 ± 0.00 | 1.00 |"
        in table(probes)
    )


def test_the_figure(probes, tmp_path):
    # variances of the two seeds: 4 and 16, 1 and 4, ¼ and 1; exact has none
    assert curves(probes) == {
        "elbo": [(1.0, 10.0), (4.0, 2.5)],
        "stratified": [(4.0, 0.625)],
    }
    draw(probes, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_where_nothing_was_enumerated_there_is_no_bias(probes, tmp_path):
    folder = tmp_path / "elbo1-0"
    summary = json.loads((folder / "summary.json").read_text())
    summary["metrics"]["exact"] = None
    (folder / "summary.json").write_text(json.dumps(summary))
    assert math.isnan(read(folder).bias)
    assert "| `elbo` | K=1 | 1 | 1.00 | 1.50 |  | 2.000 | 1.00 ± nan |" in table([read(folder)])


def test_names_and_budgets():
    node = {"_target_": "x.quadrature.Quadrature", "nodes": 2, "draws": 3}
    assert estimator_name(node) == "quadrature"
    assert estimator_name({**node, "divide_by": {"_target_": "x.node_rate"}}) == "quadrature_node"
    assert budget(node) == "2 nodes, K=3"
    assert budget({"_target_": "x.trajectory.T", "draws": None}) == "all"


def test_bypass_of_the_first_updates(tmp_path):
    rows = ("phase,train/bypass_rate,train/ratio/noise_std", "0,0.2,3", "0,0.9,9", "1,0.4,4")
    (tmp_path / "metrics.csv").write_text("\n".join(rows) + "\n")
    # mean 0.3 ± 0.1 (std 0.1·√2, two phases), noise √((9 + 16)/2)
    predicted = {"bypass_rate": 0.2, "bypass_error": 0.01, "std": 3.0}
    shown = "| `elbo` | 0.2000 ± 0.0100 | 0.3000 ± 0.1000 | 1.50 | 3.000, 3.536 |"
    assert line("elbo", predicted, tmp_path) == shown
