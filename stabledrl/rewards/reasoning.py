"""Scores of reasoning-gym. Runs in worker processes only: its scorers are other people's code."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from reasoning_gym.factory import create_dataset


def score(request: tuple[str, str, int, str]) -> float:
    """`[dataset, settings as JSON, position, answer]` → the dataset's own score, within 0 and 1."""
    name, settings, position, answer = request
    data = dataset(name, settings)
    return min(1.0, max(0.0, float(data.score_answer(answer, data[position]))))


@lru_cache(maxsize=8)
def dataset(name: str, settings: str) -> Any:
    """A dataset of reasoning-gym; its items are the same in every process."""
    return create_dataset(name, **json.loads(settings))
