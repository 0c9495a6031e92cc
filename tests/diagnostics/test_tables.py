"""Numbers of an arm worked by hand, and tables as text."""

import math
from pathlib import Path

import numpy as np
import pytest

from stabledrl.diagnostics.collapse import Signal, Verdict
from stabledrl.diagnostics.runs import Run, Validation
from stabledrl.diagnostics.summaries import spread, summarize
from stabledrl.diagnostics.tables import (
    Table,
    arm_table,
    markdown,
    not_finished,
    number,
    plain,
    run_table,
    settings_table,
)


def run(name="a", status="finished", arm="x", seed=0, verdict=None, **changes):
    made = Run(Path(name), status=status, arm=arm, seed=seed, **changes)
    vars(made)["verdict"] = verdict  # of the detector, which has tests of its own
    return made


def grown(seed, final, verdict):
    return run(
        f"r{seed}",
        seed=seed,
        verdict=verdict,
        validations=(Validation(0, 0, 0.5), Validation(9, 9, final)),
        series={
            "train/solved": np.array([0.0] * 5 + [final] * 10),
            "train/grad_norm": np.array([1.0, np.nan, 10.0 + seed, np.inf if seed == 2 else 0.0]),
            "train/bypass_rate": np.array([0.1, 0.3, np.nan]),
        },
    )


CALM = Verdict(False, None, ())
SPIKED = Verdict(True, 4, (Signal("grad_norm", 2), Signal("ess", 3)))


def test_an_arm_by_hand():
    runs = [grown(0, 0.2, SPIKED), grown(1, 0.4, CALM), grown(2, 0.6, CALM)]
    runs.append(run("broken", status="failed", summary={"error": "boom"}))
    (arm,) = summarize(runs)
    assert (arm.arm, arm.runs, arm.finished) == ("x", 4, 3)
    assert arm.final_held_out.mean == pytest.approx(0.4)
    assert arm.final_held_out.std == pytest.approx(0.2)  # sqrt((0.04 + 0 + 0.04) / 2)
    assert arm.best_held_out.mean == pytest.approx(1.6 / 3)  # 0.5, 0.5, 0.6
    assert arm.final_training.mean == pytest.approx(0.4)  # the first five phases do not count
    assert (arm.collapsed, arm.judged, arm.first_signal) == (1, 3, "grad_norm")
    # Wilson, p = 1/3, n = 3, z = 1.96: z² = 3.8416, scale 2.28053, center (1/3 + 0.64027)/2.28053,
    # half 1.96·sqrt((2/9)/3 + 3.8416/36)/2.28053
    low, high = 0.42692 - 0.36537, 0.42692 + 0.36537
    assert arm.collapse_interval == pytest.approx((low, high), abs=1e-4)
    assert (arm.peak_gradient_median, arm.peak_gradient_max) == (11.0, math.inf)
    assert arm.bypass_rate == pytest.approx(0.2)
    assert math.isnan(arm.ratio_noise)


def test_one_seed_has_no_deviation_and_nothing_measured_is_a_dash():
    assert str(spread([0.25])) == "0.250 ± –"
    assert str(spread([0.25, math.nan])) == "0.250 ± –"
    assert str(spread([math.nan])) == "–"
    table = arm_table(summarize([run("e", summary={"optimized_metric": 0.5})]))
    assert table.columns == ("arm", "runs", "job result")
    assert table.rows == (("x", "1", "0.500 ± –"),)


def test_an_arm_of_failures_is_shown_as_such():
    failed = run(status="failed", arm="y", summary={"error": "lr: too\nlarge"})
    table = arm_table(summarize([grown(0, 0.2, SPIKED), failed]))
    assert [row[:2] for row in table.rows] == [("x", "1"), ("y", "0 (+1 not finished)")]
    assert "1 of 1" in table.rows[0]
    assert "0.21 to 1.00" in table.rows[0]
    shown = run_table([grown(0, 0.2, SPIKED), failed])
    rows = [dict(zip(shown.columns, row, strict=True)) for row in shown.rows]
    assert rows[1]["status"] == "failed: lr: too large"
    assert rows[0]["collapse began in phase"] == "4"
    assert rows[0]["signals, first to last"] == "grad_norm (2), ess (3)"
    assert (rows[0]["phases"], rows[1]["phases"]) == ("15", "–")


def test_runs_that_did_not_finish_are_counted_and_so_are_their_collapses():
    lost = [run(f"l{seed}", status="failed", seed=seed, verdict=SPIKED) for seed in (1, 2)]
    calm = run("u", status="unfinished", seed=3, verdict=CALM)
    (arm,) = summarize([grown(0, 0.2, CALM), *lost, calm])
    assert (arm.collapsed, arm.judged, arm.collapsed_unfinished) == (0, 1, 2)
    assert arm_table([arm]).rows[0][1] == "1 (+3 not finished, 2 of them collapsed)"
    assert not_finished(summarize([grown(0, 0.2, CALM)])[0]) == ""


def test_settings_that_differ():
    runs = [run(arm=f"k={k}", settings={"k": k, "same": 1}) for k in (1, 2)]
    table = settings_table(runs)
    assert (table.columns, table.rows) == (("setting", "k=1", "k=2"), (("k", "1", "2"),))
    assert settings_table(runs[:1]).rows == ()


def test_markdown_escapes_what_would_break_it():
    table = Table(("a|b", "c"), (("<img>\n", "x & y"),))
    assert markdown(table).splitlines() == [
        "| a\\|b | c |",
        "| --- | --- |",
        "| &lt;img&gt; | x &amp; y |",
    ]
    assert plain("a\n b") == "a b"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.1234, "0.123"),
        (12345.0, "1.23e+04"),
        (1e-5, "1e-05"),
        (math.nan, "–"),
        (math.inf, "inf"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text
