"""Bias, spread and cost of estimators at equal budget, from runs of job=probe.

    python benchmarks/estimator_table.py multirun/estimators [--figure docs/figures/estimators.png]

Reads the probes below a folder and prints a Markdown table, one row per estimator and budget, seeds
averaged. Efficiency is variance · forwards over that of `elbo` of the same seed, whose variance is
σ²/K whatever K is: what the same variance costs, 1 for `elbo`. ± is one standard error: of the bias
over mask draws, of the efficiency over seeds. The figure shows variance against forward passes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from stabledrl.diagnostics.figures import DPI, style
from stabledrl.jobs.comparison import runs_below

YARDSTICK = "elbo"
UNBIASED = {"elbo", "stratified", "coupled"}  # for the order-averaged ELBO; drawn as whole lines


@dataclass(frozen=True)
class Probed:
    """One probe: an estimator, its budget, and what was measured.

    variance: of one evaluation (nats²). group: std of differences from the group's mean over std.
    bias, bias_error: NaN where nothing was enumerated.
    """

    name: str
    budget: str
    seed: int
    forwards: float
    time: float
    bias: float
    bias_error: float
    variance: float
    group: float


def estimator_name(estimator: Mapping[str, Any]) -> str:
    """That of its file in conf/estimator, from the settings of a run."""
    module = str(estimator["_target_"]).split(".")[-2]
    division = str(estimator.get("divide_by", {}).get("_target_", ""))
    return f"{module}_node" if division.endswith("node_rate") else module


def budget(estimator: Mapping[str, Any]) -> str:
    """Its number of draws and nodes in words, empty where it has none."""
    parts = [f"{estimator['nodes']} nodes"] if "nodes" in estimator else []
    if "draws" in estimator:
        parts.append("all" if estimator["draws"] is None else f"K={estimator['draws']}")
    return ", ".join(parts)


def read(directory: Path) -> Probed:
    """What a probe left. Variances are averaged over its two independent sets of draws."""
    settings = yaml.safe_load((directory / "config.yaml").read_text())
    metrics = json.loads((directory / "summary.json").read_text())["metrics"]
    whole, exact = metrics["evaluations"], metrics["exact"] or {}
    stds = [whole["std"]]
    if exact.get("completions") == whole["completions"]:
        stds.append(exact["std"])
    return Probed(
        name=estimator_name(settings["estimator"]),
        budget=budget(settings["estimator"]),
        seed=settings["seed"],
        forwards=whole["forwards"],
        time=whole["time"],
        bias=exact.get("bias", math.nan),
        bias_error=exact.get("bias_error", math.nan),
        variance=statistics.fmean(std**2 for std in stds),
        group=whole["group_std"] / whole["std"] if whole["std"] else 1.0,
    )


def efficiencies(probes: Sequence[Probed]) -> dict[tuple[str, str], list[float]]:
    """variance · forwards over the yardstick's mean of it at the same seed, by name and budget."""
    unit = defaultdict(list)
    for probe in probes:
        if probe.name == YARDSTICK:
            unit[probe.seed].append(probe.variance * probe.forwards)
    found = defaultdict(list)
    for probe in probes:
        if probe.seed in unit:
            scale = statistics.fmean(unit[probe.seed])
            found[probe.name, probe.budget].append(probe.variance * probe.forwards / scale)
    return dict(found)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of independent values; NaN of one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def by_budget(probes: Iterable[Probed]) -> dict[tuple[str, str], list[Probed]]:
    """Seeds of the same estimator and budget together: by name, the cheapest first."""
    found = defaultdict(list)
    for probe in sorted(probes, key=lambda probe: (probe.name, probe.forwards)):
        found[probe.name, probe.budget].append(probe)
    return dict(found)


def table(probes: Sequence[Probed]) -> str:
    """The Markdown table."""
    relative = efficiencies(probes)
    lines = [
        "| estimator | budget | seeds | forwards | time | bias | std | efficiency | in the group |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for key, seeds in by_budget(probes).items():
        bias = statistics.fmean(seed.bias for seed in seeds)
        error = math.hypot(*(seed.bias_error for seed in seeds)) / len(seeds)
        ratio = relative.get(key, [math.nan])
        cells = (
            f"`{key[0]}`",
            key[1],
            str(len(seeds)),
            f"{statistics.fmean(seed.forwards for seed in seeds):.2f}",
            f"{statistics.median(seed.time for seed in seeds):.2f}",
            f"{bias:+.3f} ± {error:.3f}" if math.isfinite(bias) else "",
            f"{math.sqrt(statistics.fmean(seed.variance for seed in seeds)):.3f}",
            f"{statistics.fmean(ratio):.2f} ± {standard_error(ratio):.2f}",
            f"{statistics.fmean(seed.group for seed in seeds):.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def curves(probes: Sequence[Probed]) -> dict[str, list[tuple[float, float]]]:
    """Forward passes and variance by line of the figure; an estimator without variance has none."""
    found = defaultdict(list)
    for (name, words), seeds in by_budget(probes).items():
        variance = statistics.fmean(seed.variance for seed in seeds)
        if variance > 0:
            nodes = [part for part in words.split(", ") if part.endswith("nodes")]
            forwards = statistics.fmean(seed.forwards for seed in seeds)
            found[", ".join([name, *nodes])].append((forwards, variance))
    return {name: sorted(points) for name, points in found.items()}


def draw(probes: Sequence[Probed], path: Path) -> None:
    """Variance against forward passes, both logarithmic, as a png."""
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    lines = sorted(curves(probes).items(), key=lambda line: line[0] not in UNBIASED)
    for index, (name, points) in enumerate(lines):
        look, unbiased = style(index), name in UNBIASED
        axes.loglog(
            *zip(*points, strict=True),
            color=look.color,
            marker=look.marker,
            markersize=7,
            markerfacecolor=look.color if unbiased else "white",
            linestyle="-" if unbiased else "--",
            linewidth=1.6,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("forward passes per completion")
    axes.set_ylabel("variance of one evaluation (nats²)")
    axes.grid(alpha=0.25, linewidth=0.6, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small", handlelength=3.5)
    canvas.print_figure(path, dpi=DPI)


def main() -> None:
    """Print the table and, if asked, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a folder with runs of job=probe")
    parser.add_argument("--figure", type=Path, help="png to write")
    arguments = parser.parse_args()
    finished = (run for run in runs_below(arguments.folder) if (run / "summary.json").is_file())
    probes = [read(run) for run in finished]
    print(table(probes))
    if arguments.figure:
        draw(probes, arguments.figure)


if __name__ == "__main__":
    main()
