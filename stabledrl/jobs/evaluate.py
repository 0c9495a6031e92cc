"""job=evaluate: greedy solve rate and pass@k of a model on a split, at several decoder settings."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Len
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from stabledrl.config import build
from stabledrl.declarations import declares
from stabledrl.jobs.evaluating import Numbers, common, settings_of, several_k
from stabledrl.jobs.policies import build_policy
from stabledrl.jobs.record import Record
from stabledrl.randomness import keyed_generator
from stabledrl.rollout import Rollout, collect, records

Sizes = Annotated[list[Annotated[int, Gt(0)]], Len(1)]


@declares(trains_on=None)
def evaluate(
    cfg: DictConfig,
    split: Literal["train", "validation", "test"],
    prompts: Annotated[int, Gt(0)],
    samples: Annotated[int, Ge(0)],
    k: Sizes | None,
    lengths: Sizes | None,
    steps: Sizes | None,
) -> float:
    """Decode greedily, and `samples` times at sampler.temperature, at every length and steps.

    Returns the greedy solve rate of the first setting. The completions go to completions/, the
    numbers to summary.json and evaluation.csv, a row for each setting.
    """
    settings, several = settings_of(cfg, lengths, steps), several_k(k, samples)
    record = Record(cfg)
    task = record.using(build(cfg.task))
    policy = build_policy(cfg)
    items = task.prompts(split, 0, 0, prompts)
    folder = record.directory / "completions"
    folder.mkdir(exist_ok=True)
    found: list[Numbers] = []
    rows = cfg.rollout.sampling_rows
    for setting in settings:
        numbers: Numbers = {"length": setting.length, "steps": setting.steps}
        for name, decoder, size, measure in setting.decodings(samples):
            generator = keyed_generator("evaluate", cfg.seed)
            rollout = collect(policy, decoder, task, items, size, generator, rows)
            write_completions(folder / f"{setting.name}_{name}.jsonl", rollout)
            measured = {**measure(rollout, several), **common(rollout)}
            numbers = {**numbers, **{f"{name}/{key}": value for key, value in measured.items()}}
        found.append(numbers)
        write_table(record.directory / "evaluation.csv", found)
    _tell(record, split, found, several)
    return float(found[0]["greedy/solved"])


def write_completions(path: Path, rollout: Rollout) -> None:
    """A line for each completion, as job=grade reads them."""
    with path.open("w") as file:
        file.writelines(json.dumps(item) + "\n" for item in records(rollout))


def write_table(path: Path, found: Sequence[Numbers]) -> None:
    """A row for each setting; intervals as two columns, `…_low` and `…_high`."""
    rows = [dict(_flat(numbers)) for numbers in found]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _flat(numbers: Numbers) -> Iterator[tuple[str, object]]:
    for name, value in numbers.items():
        if isinstance(value, list):
            yield from zip((f"{name}_low", f"{name}_high"), value, strict=True)
        else:
            yield name, value


def table(found: Sequence[Numbers], several: Sequence[int], split: str) -> Table:
    """A row for each rate of each setting: its interval, and what the completions cost."""
    picture = Table(title=f"{split}: rates, 95 % interval over prompts", title_justify="left")
    for title in ("length", "steps", "", "rate", "reward", "forwards", "no verdict", "seconds"):
        picture.add_column(title, justify="right")
    for numbers in found:
        size = (str(numbers["length"]), str(numbers["steps"]))
        rate = interval(numbers, "greedy/solved")
        picture.add_row(*size, "greedy pass@1", rate, *_costs(numbers, "greedy"))
        for row, k in enumerate(several):  # the same completions: what they cost stands once
            costs = () if row else _costs(numbers, "sampled")
            picture.add_row(*size, f"pass@{k}", interval(numbers, f"sampled/pass_at_{k}"), *costs)
        picture.add_section()
    return picture


def _costs(numbers: Numbers, name: str) -> tuple[str, ...]:
    return (
        f"{numbers[f'{name}/reward']:.3f}",
        f"{numbers[f'{name}/forwards']:.1f}",
        str(numbers[f"{name}/no_verdict"]),
        f"{numbers[f'{name}/seconds']:.1f}",
    )


def interval(numbers: Numbers, key: str) -> str:
    """A rate and its interval."""
    low, high = numbers[f"{key}_95"]
    return f"{numbers[key]:.3f} [{low:.3f}, {high:.3f}]"


def _tell(record: Record, split: str, found: Sequence[Numbers], several: Sequence[int]) -> None:
    """The table, summary.json and the panel."""
    Console().print(table(found, several, split))
    first = found[0]
    rows = [
        (f"greedy solve rate, {split}", interval(first, "greedy/solved")),
        *((f"pass@{k}", interval(first, f"sampled/pass_at_{k}")) for k in several),
    ]
    if len(found) > 1:
        setting = f"length {first['length']}, {first['steps']} steps"
        rows = [("settings", f"{len(found)}; the first, {setting}:"), *rows]
    unjudged = sum(
        value for numbers in found for key, value in numbers.items() if key.endswith("no_verdict")
    )
    if unjudged:
        rows.append(("no verdict", f"{unjudged} completions, counted as unsolved"))
    record.finish({"settings": found}, first["greedy/solved"], rows=rows)
