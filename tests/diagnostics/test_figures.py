"""Curves by hand, and figures that are drawn whatever was logged."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from stabledrl.diagnostics.collapse import Verdict
from stabledrl.diagnostics.curves import (
    Curve,
    curve,
    last_phase,
    mean_curve,
    running_mean,
    value_at,
)
from stabledrl.diagnostics.figures import draw, literal, style
from stabledrl.diagnostics.panels import PANELS
from stabledrl.diagnostics.runs import Run, Validation

PNG = b"\x89PNG\r\n"


def line(*values, start=0):
    return Curve(start + np.arange(len(values), dtype=float), np.array(values, dtype=float))


def test_curves_leave_out_what_is_not_finite():
    run = Run(
        Path("a"),
        series={"x": np.array([1.0, np.nan, 0.0, np.inf])},
        validations=(Validation(8, 7, 0.5),),
    )
    assert [part.tolist() for part in curve(run, "x")] == [[0, 2], [1, 0]]
    assert [part.tolist() for part in curve(run, "x", positive=True)] == [[0], [1]]
    assert [part.tolist() for part in curve(run, "val/solved")] == [[7], [0.5]]
    assert len(curve(run, "absent").phase) == len(curve(Run(Path("b")), "val/solved").phase) == 0


def test_running_mean_by_hand():
    assert running_mean(line(1, 3, 5, 1), window=2).value.tolist() == [1, 2, 4, 3]
    np.testing.assert_allclose(running_mean(line(1, 100), geometric=True).value, [1, 10])


def test_the_mean_covers_phases_that_most_runs_have():
    # phase 2: two of three runs; phase 3: one of three
    mean = mean_curve([line(1, 1), line(2, 2, 3), line(3, 3, 5, 9)])
    assert [part.tolist() for part in mean] == [[0, 1, 2], [2, 2, 4]]
    np.testing.assert_allclose(mean_curve([line(1), line(100)], geometric=True).value, [10])
    assert len(mean_curve([line(), line()]).phase) == 0
    # no phase in common
    assert len(mean_curve([line(1), line(1, start=9)]).phase) == 0


def test_the_mean_does_not_go_on_with_the_survivors():
    # two of five collapse and end: from phase 2 on the mean would be 1
    curves = [line(1, 1, 1, 1)] * 3 + [line(0, 0)] * 2
    np.testing.assert_allclose(mean_curve(curves, until=1).value, [0.6, 0.6])
    assert last_phase(Run(Path("a"), series={"x": np.zeros(7), "y": np.zeros(7)})) == 7
    assert last_phase(Run(Path("a"))) == 0


def test_value_at():
    assert value_at(line(1, 2, 4), 1.5) == 3
    assert value_at(line(1, 2, 4), 2) == 4
    assert value_at(line(1, start=4), 3) is None
    assert value_at(line(), 3) is None


def test_looks_differ_in_colour_dashes_and_marker():
    looks = [style(index) for index in range(6)]
    for part in ("color", "dashes", "marker"):
        assert len({getattr(look, part) for look in looks}) == 6
    assert len({style(index) for index in range(40)}) == 40
    assert literal("a$b") == r"a\$b"


@pytest.fixture
def runs():
    """Unequal lengths and columns, an arm that collapsed, one with nothing, an odd label."""
    long, short = np.linspace(0.9, 0.1, 30), np.array([0.5, np.nan])
    made = [
        Run(Path("a"), arm="<b>$x$_", series={"train/solved": long, "train/grad_norm": 0 * long}),
        Run(Path("b"), arm="<b>$x$_", series={"train/solved": short, "train/ess": short}),
        Run(Path("c"), arm="c", series={"train/grad_norm": np.array([1e-3, 1e9, np.inf])}),
        Run(Path("d"), arm="d"),
    ]
    for run in made:
        vars(run)["verdict"] = Verdict(run.arm != "c", 20, ()) if run.series else None
    return made


def test_figures_of_what_was_logged(runs, tmp_path):
    drawings = draw(runs, tmp_path / "figures")
    names = ["overview", "solved_training", "gradient_norm", "ess"]
    assert [drawing.path.stem for drawing in drawings] == names
    assert sorted(path.stem for path in (tmp_path / "figures").iterdir()) == sorted(names)
    assert all(drawing.path.read_bytes().startswith(PNG) for drawing in drawings)


def test_a_phase_has_the_same_place_in_every_panel(runs, tmp_path, monkeypatch):
    """Gradients that are 0 cannot be drawn on a log axis: the line ends, the axis must not."""
    pages: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, dpi: pages.append(figure))
    draw(runs, tmp_path)
    assert len(pages) == 4
    (limits,) = {axes.get_xlim() for page in pages for axes in page.axes if axes.axison}
    assert limits[0] < 0
    assert limits[1] > 29


def test_nothing_logged_nothing_drawn(runs, tmp_path):
    assert draw(runs[3:], tmp_path / "figures") == []
    assert not (tmp_path / "figures").exists()


def test_a_single_panel_needs_no_overview(runs, tmp_path):
    only = [Run(Path("a"), arm="a", validations=(Validation(0, 0, 0.5),))]
    assert [drawing.path.stem for drawing in draw(only, tmp_path)] == ["solved_held_out"]


def test_panels_have_files_of_their_own():
    assert len({panel.file for panel in PANELS}) == len({p.metric for p in PANELS}) == len(PANELS)
