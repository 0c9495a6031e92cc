"""The length part of a reward: a penalty for going on too long (off unless its weight is set)."""

from __future__ import annotations


def length_penalty(text: str, limit: int) -> float:
    """0.0 up to `limit` characters, then falling linearly to −1.0 at twice the limit and beyond.

    text: the completion as graded. limit: characters, at least 1.
    Linear rather than a cliff, so that samples of one group still differ (the soft over-long
    punishment of DAPO, arXiv 2503.14476, in characters because graders see text, not tokens).
    """
    excess = max(0, len(text) - limit)
    return 0.0 - min(1.0, excess / limit)
