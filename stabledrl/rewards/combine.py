"""Parts of a reward and the named weights that combine them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from stabledrl.errors import did_you_mean, listing


@dataclass(frozen=True, config={"extra": "forbid"})
class Part:
    """How much one named part of a reward pays (`task.rewards.{part}.weight`).

    weight: factor on the part, any finite number; 0 only measures it, None leaves it to the task.
    """

    weight: Annotated[float, Field(allow_inf_nan=False)] | None = None


def require_parts(names: Iterable[str], known: tuple[str, ...]) -> None:
    """Refuse (ValueError) a weight for a part that the task does not have, naming the nearest."""
    for name in names:
        if name in known:
            continue
        hint = did_you_mean(name, known)
        raise ValueError(f"unknown reward part {name!r}{hint} (there are {listing(known)})")


def weights_by_part(defaults: Mapping[str, float], rewards: Mapping[str, Part]) -> dict[str, float]:
    """The weights of a task: its defaults, except where `rewards` gives a number."""
    given = {name: part.weight for name, part in rewards.items() if part.weight is not None}
    return {**defaults, **given}


def combine(parts: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Weighted sum Σ weight·part; a weight without its part is a ValueError.

    Summed exactly (fsum), so that the order of the names never shows in the last bit.
    """
    require_parts(weights, tuple(parts))
    return math.fsum(weight * parts[name] for name, weight in weights.items())
