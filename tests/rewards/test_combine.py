"""Weights by name, and the length part."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stabledrl.rewards.combine import Part, combine, require_parts, weights_by_part
from stabledrl.rewards.length import length_penalty


def test_the_weighted_sum() -> None:
    parts = {"cells": 0.5, "format": 1.0, "length": -1.0}
    assert combine(parts, {"cells": 1.0}) == 0.5
    assert combine(parts, {"cells": 2.0, "format": 0.5, "length": 0.25}) == 1.25  # 1 + .5 - .25
    assert combine(parts, {}) == 0.0


def test_the_order_of_the_names_does_not_show() -> None:
    parts = {"a": 0.1, "b": 0.2, "c": 0.3}
    weights = dict.fromkeys(parts, 1.0)
    assert combine(parts, weights) == combine(parts, dict(reversed(weights.items())))


def test_unknown_parts_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'cells'"):
        combine({"cells": 1.0}, {"cell": 1.0})
    with pytest.raises(ValueError, match=r"unknown reward part 'x' \(there are cells, solved"):
        require_parts(["x"], ("cells", "solved"))


def test_given_weights_win_and_none_keeps_the_default() -> None:
    rewards = {"cells": Part(), "format": Part(0.5)}
    assert weights_by_part({"cells": 1.0}, rewards) == {"cells": 1.0, "format": 0.5}
    assert weights_by_part({"cells": 1.0}, {"cells": Part(0.0)}) == {"cells": 0.0}


def test_weights_are_finite_numbers() -> None:
    for weight in (float("inf"), float("nan"), "much"):
        with pytest.raises(ValidationError):
            Part(weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("characters", "penalty"), [(0, 0.0), (10, 0.0), (15, -0.5), (20, -1.0), (99, -1.0)]
)
def test_the_length_penalty_falls_from_the_limit_to_twice_the_limit(
    characters: int, penalty: float
) -> None:
    assert length_penalty("x" * characters, limit=10) == penalty
