"""The dashboard shows what design and docs promise, each series once."""

from collections import Counter

from stabledrl.diagnostics.dashboard import FIRST_ROW, Dashboard
from tests.test_docs import documented

DASHBOARD = Dashboard(entity=None, project="p", name="n", arms=())


def test_the_first_row_is_one_screen_wide_and_in_order():
    shown = [(panel.metrics, panel.log_scale) for panel in FIRST_ROW.panels]
    assert shown == [
        (("train/reward",), False),
        (("train/grad_norm",), True),
        (("train/ratio/log_max",), False),
        (("train/ess",), False),
        (("train/bypass_rate",), False),
        (("train/drift/old",), False),
    ]
    assert FIRST_ROW.columns == len(FIRST_ROW.panels)
    assert FIRST_ROW.is_open
    assert DASHBOARD.sections[0] == FIRST_ROW


def test_every_documented_series_has_its_place_and_no_other():
    # the parts of a reward are named by the task
    expected = [key for key in documented() if "{" not in key]
    assert Counter(DASHBOARD.metrics) == Counter(expected)
