"""job=grade: the verdicts of the task's verifier on given completions; no model is loaded."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig
from pydantic import ValidationError

from stabledrl.config import build
from stabledrl.declarations import declares
from stabledrl.functional.evaluation import wilson_interval
from stabledrl.jobs.lines import Answer, Line, read_lines, write_lines
from stabledrl.jobs.record import Record
from stabledrl.types import Prompt, RewardOutput, Task

REMEDY = "choose the task it is of (task=…), with the data that job=generate writes"


@declares(trains_on=None, loads_model=False)
def grade(cfg: DictConfig, input: str | None) -> float:
    """Grade every completion of a file; returns the solve rate.

    They go to grades.jsonl, a line for each line of the input with all that it held.
    """
    lines = read_lines(input, Answer)
    record = Record(cfg)
    task = record.using(build(cfg.task))
    path = record.directory / "grades.jsonl"
    verdicts = []
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            verdict = verify(task, line)
            write_lines(file, [{**line.content, **_result(verdict)}])
            verdicts.append(verdict)
    return _tell(record, verdicts, task.name, str(path))


def verify(task: Task, line: Line[Answer]) -> RewardOutput:
    """The task's verdict; UserError if the line is another task's or its data are not enough.

    A task says what its verifier needs by `data_shape`, a pydantic model, or raises KeyError or
    ValueError where it is not there.
    """
    item = line.item
    if item.task not in (None, task.name):
        raise line.fault(f"it is of the task '{item.task}', not of '{task.name}'; {REMEDY}")
    shape = getattr(task, "data_shape", None)
    try:
        if shape is not None:
            shape.model_validate(item.data)
        return task.verify(Prompt(item.prompt, task.name, item.key, item.data), item.completion)
    except KeyError as error:
        reason = f"'data' has no {error}, which the task '{task.name}' needs; {REMEDY}"
        raise line.fault(reason) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        reason = f"'data.{key}' is not what the task '{task.name}' needs: {first['msg']}; {REMEDY}"
        raise line.fault(reason) from error
    except ValueError as error:
        reason = f"'data' is not what the task '{task.name}' needs: {error}; {REMEDY}"
        raise line.fault(reason) from error


def _result(verdict: RewardOutput) -> Mapping[str, Any]:
    """What job=grade adds to a line; a reward of null is no verdict."""
    return {
        "reward": verdict.total,
        "solved": verdict.solved,
        "parts": dict(verdict.parts),
        "reason": verdict.reason,
    }


def _tell(record: Record, verdicts: list[RewardOutput], task: str, path: str) -> float:
    """summary.json and the panel; returns the solve rate, of all lines."""
    rate = statistics.fmean(item.solved for item in verdicts)
    low, high = wilson_interval(rate, len(verdicts))
    rewards = [item.total for item in verdicts if item.total is not None]
    mean = statistics.fmean(rewards) if rewards else None
    metrics = {
        "completions": len(verdicts),
        "solved": rate,
        "solved_95": [low, high],
        "reward": mean,
        "no_verdict": len(verdicts) - len(rewards),
    }
    rows = [
        ("completions", f"{len(verdicts)}, task {task}"),
        ("solve rate", f"{rate:.3f} [{low:.3f}, {high:.3f}]"),
        ("mean reward", "none" if mean is None else f"{mean:.3f}"),
        ("no verdict", f"{metrics['no_verdict']}"),
        ("grades", path),
    ]
    record.finish(metrics, rate, rows=rows)
    return rate
