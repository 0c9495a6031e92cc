"""Items and scores of reasoning-gym. Runs in worker processes only: it is other people's code.

An item is made where it is asked and again where it is scored. Some generators walk through sets or
draw from the global `random`, so both happen here: workers share one hash seed, and `random` is
seeded anew for each item.
"""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import Any

from reasoning_gym.factory import create_dataset


def reply(request: tuple[str, str, int, str | None]) -> dict[str, str | None] | float:
    """`[dataset, settings as JSON, position, None]` → the item's question and answer.

    With an answer in place of None: the dataset's own score of it, within 0 and 1.
    """
    name, settings, position, answer = request
    data = dataset(name, settings)
    random.seed(position)
    entry = data[position]
    if answer is None:
        return {"question": entry["question"], "answer": entry["answer"]}
    return min(1.0, max(0.0, float(data.score_answer(answer, entry))))


@lru_cache(maxsize=8)
def dataset(name: str, settings: str) -> Any:
    """A dataset of reasoning-gym, made once; for some that takes longer than many scores."""
    random.seed(0)
    return create_dataset(name, **json.loads(settings))
