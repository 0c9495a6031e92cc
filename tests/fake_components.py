"""Small stand-ins for the rooms of the house, so that tests of the front door import no torch."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from annotated_types import Gt
from pydantic import ConfigDict, Field

if TYPE_CHECKING:
    from somewhere_unknown import Strange


def clip(log_ratio: list[float], epsilon: Annotated[float, Gt(0)] = 0.2) -> list[float]:
    """A partial: data arrive at the call, numbers from the configuration."""
    return [min(x, epsilon) for x in log_ratio]


def normalize(weight: list[float]) -> list[float]:
    """A normalization within the group."""
    return weight


def normalize_step(weight: list[float]) -> list[float]:
    """A normalization over the whole optimiser step."""
    return weight


normalize_step.needs_whole_step = True  # type: ignore[attr-defined]


def anything(**settings: Any) -> dict[str, Any]:
    """Takes every key."""
    return settings


class Uniform:
    """A masking that asks for nothing."""


class BlockRandom:
    """Another masking."""

    def __init__(self, block_length: Annotated[int, Gt(0)] = 4) -> None:
        self.block_length = block_length


class Elbo:
    """An estimator that accepts any masking."""

    def __init__(self, draws: int = 2, masking: Any = None) -> None:
        self.draws = draws


class Coupled:
    """An estimator with masks of its own."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Sampler:
    """Bounds in annotations and in fields, a rule in __post_init__."""

    length: Annotated[int, Gt(0)] = 16
    block_length: int = Field(4, gt=0)
    steps: int = 8
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    temperature: float = 0.9

    def __post_init__(self) -> None:
        if self.temperature > 5:
            raise ValueError("temperature above 5 is noise")


@dataclass
class Task:
    """An ordinary dataclass with a mandatory key and a key of an unknown type."""

    name: str
    sizes: tuple[int, ...] = (1, 2)
    strange: Strange | None = None


class Trainer:
    """What the rules read of a trainer."""

    def __init__(
        self,
        devices: int | str | list[int] = 1,
        accelerator: str = "cpu",
        accumulate_grad_batches: int = 1,
    ) -> None:
        self.devices = devices


def job(cfg: Any, fail_at: int | None = None) -> float:
    """Leave a finished summary whose metric is the seed, or fail, or be interrupted."""
    if cfg.seed == 99:
        raise KeyboardInterrupt
    if cfg.seed == fail_at:
        raise RuntimeError("something\nbroke")
    path = Path(cfg.paths.run_dir) / "summary.json"
    path.write_text(json.dumps({"status": "finished", "optimized_metric": cfg.seed}))
    with (path.parent / "runs.txt").open("a") as file:
        file.write("ran\n")
    return float(cfg.seed)


def fragile_job(cfg: Any) -> float:
    """Note the start, then finish; or end as the environment says: ENDS="2=die 3=sleep".

    The environment, since an override would make it another job. late_ ends come after the result.
    """
    directory = Path(cfg.paths.run_dir)
    with (directory / "starts.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")
    ends = dict(item.split("=") for item in os.environ.get("ENDS", "").split())
    end = ends.get(str(cfg.seed), "finish")
    late = end.startswith("late_")
    ENDS["finish" if late else end]()
    summary = {"status": "finished", "optimized_metric": cfg.seed}
    (directory / "summary.json").write_text(json.dumps(summary))
    ENDS[end.removeprefix("late_") if late else "finish"]()
    return float(cfg.seed)


def _raise() -> None:
    raise RuntimeError("something broke")


ENDS = {
    "finish": lambda: None,
    "raise": _raise,
    "exit": lambda: os._exit(3),
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleep": lambda: time.sleep(60),
}
