"""Figures of a comparison: one panel per metric, arms overlaid, seeds thin and their mean bold.

Readable in black and white and by colour-blind people: the colours are those of Okabe and Ito
(2008, jfly.uni-koeln.de/color), and every arm has a dash pattern and a marker of its own as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from stabledrl.diagnostics.curves import (
    Curve,
    curve,
    last_phase,
    mean_curve,
    running_mean,
    value_at,
)
from stabledrl.diagnostics.panels import PANELS, Panel
from stabledrl.diagnostics.runs import Run

# Okabe and Ito without yellow, which is lost on white; black last, it is the axes' colour
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
Dashes = tuple[float, tuple[float, ...]]  # offset; lengths of dashes and gaps, none: a solid line
DASHES: tuple[Dashes, ...] = (
    (0, ()),
    (0, (5, 1.5)),
    (0, (1, 1.2)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 3)),
)
MARKERS = "osD^vPX<>"
DPI = 110
COLLAPSE = "collapse begins"


@dataclass(frozen=True)
class Style:
    """How an arm is drawn."""

    color: str
    dashes: Dashes
    marker: str


@dataclass(frozen=True)
class Drawing:
    """A figure that has been written. path: of the png."""

    path: Path
    title: str
    caption: str


def style(index: int) -> Style:
    """Of the arm with this index: 126 differ in something, the first six in everything."""
    return Style(
        COLORS[index % len(COLORS)], DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)]
    )


def draw(runs: Sequence[Run], folder: Path) -> list[Drawing]:
    """Write an overview and one figure per metric that was logged; nothing if none was."""
    styles = {arm: style(index) for index, arm in enumerate(dict.fromkeys(r.arm for r in runs))}
    panels = [panel for panel in PANELS if any(len(_curve(run, panel).phase) for run in runs)]
    if not panels:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    overview = _page(runs, panels, styles)
    drawings = [
        _write(overview, folder / "overview.png", "Overview", "Everything on one screen.")
    ] * (len(panels) > 1)
    for panel in panels:
        page = _page(runs, [panel], styles)
        drawings.append(_write(page, folder / f"{panel.file}.png", panel.title, panel.caption))
    return drawings


def _write(figure: Figure, path: Path, title: str, caption: str) -> Drawing:
    figure.savefig(path, dpi=DPI)
    return Drawing(path, title, caption)


def _page(runs: Sequence[Run], panels: Sequence[Panel], styles: Mapping[str, Style]) -> Figure:
    """Panels in a grid as wide as high, the legend below them."""
    columns = math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    handles = list(_legend(runs, styles))
    longest = max(len(str(handle.get_label())) for handle in handles)
    width = 4.0 * columns if columns > 1 else 7.5
    across = max(1, min(4, int(width * 11 / (longest + 8))))
    legend = 0.24 * math.ceil(len(handles) / across) + 0.25  # inches
    height = (2.9 if columns > 1 else 3.7) * rows + legend
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    last = _last_phase(runs)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, panel, runs, styles)
        axes.set_xlim(-0.04 * last - 0.5, 1.04 * last + 0.5)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=across,
        frameon=False,
        fontsize="small",
        handlelength=4.5,
    )
    return figure


def _last_phase(runs: Sequence[Run]) -> float:
    """Of anything drawn: a phase has the same place in every panel, however early a line ends."""
    ends = (_curve(run, panel).phase for run in runs for panel in PANELS)
    return max(float(phases[-1]) for phases in ends if len(phases))


def _legend(runs: Sequence[Run], styles: Mapping[str, Style]) -> Iterator[Line2D]:
    for arm, look in styles.items():
        yield Line2D(
            [],
            [],
            color=look.color,
            linestyle=look.dashes,
            marker=look.marker,
            markersize=5,
            linewidth=2,
            label=literal(arm),
        )
    if any(run.verdict and run.verdict.collapsed for run in runs):
        yield Line2D([], [], **_CROSS, label=COLLAPSE)


_CROSS: dict[str, Any] = {
    "linestyle": "none",
    "marker": "X",
    "markersize": 7,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 1.0,
}


def _draw_panel(axes: Axes, panel: Panel, runs: Sequence[Run], styles: Mapping[str, Style]) -> None:
    if panel.logarithmic:
        axes.set_yscale("log")
    faint = max(0.25, min(0.45, 5 / len(runs)))  # many lines would bury the means
    for arm, members in groupby(runs, lambda run: run.arm):
        look, curves, until = styles[arm], [], math.inf
        for run in members:
            smoothed = _bold(run, panel)
            line = smoothed if panel.smooth else _curve(run, panel)
            if run.status == "finished":
                curves.append(smoothed)
                until = min(until, last_phase(run))
            axes.plot(*line, color=look.color, linewidth=0.7, alpha=faint, zorder=2)
            _mark_collapse(axes, run, line)
        mean = mean_curve(curves, panel.logarithmic, until)
        axes.plot(*mean, color="white", linewidth=3.4, alpha=0.8, zorder=2.5)  # lifts it off them
        axes.plot(
            *mean,
            color=look.color,
            linestyle=look.dashes,
            linewidth=2,
            marker=look.marker,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.6,
            markevery=_every(mean, len(styles), list(styles).index(arm)),
            zorder=3,
        )
    axes.set_title(panel.title, fontsize="medium")
    axes.set_xlabel("phase", fontsize="small")
    axes.set_ylabel(panel.unit, fontsize="small")
    axes.tick_params(labelsize="small")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _curve(run: Run, panel: Panel) -> Curve:
    return curve(run, panel.metric, positive=panel.logarithmic)


def _bold(run: Run, panel: Panel) -> Curve:
    line = _curve(run, panel)
    return line if panel.sparse else running_mean(line, geometric=panel.logarithmic)


def _mark_collapse(axes: Axes, run: Run, line: Curve) -> None:
    verdict = run.verdict
    if verdict is None or not verdict.collapsed or verdict.began is None:
        return
    value = value_at(line, verdict.began)
    if value is not None:
        axes.plot([verdict.began], [value], **_CROSS, zorder=4)


def _every(mean: Curve, arms: int, index: int) -> tuple[int, int]:
    """Some seven markers on a line, those of different arms at different places."""
    step = max(1, len(mean.phase) // 7)
    return (index * step // max(1, arms)) % step, step


def literal(label: str) -> str:
    """A label as it stands: a dollar sign would begin a formula."""
    return label.replace("$", r"\$")
