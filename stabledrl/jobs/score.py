"""job=score: likelihood proxies of given completions, with what their noise is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

import torch
from annotated_types import Gt
from omegaconf import DictConfig
from torch import Tensor

from stabledrl.config import build
from stabledrl.declarations import declares
from stabledrl.jobs.lines import Pair, portions, read_lines, write_lines
from stabledrl.jobs.record import Record
from stabledrl.jobs.texts import sequences_of
from stabledrl.policy import Policy
from stabledrl.randomness import keyed_generator
from stabledrl.types import Corruption, Estimator, Likelihood, Sequences

Scores = Mapping[str, Any]


@declares(trains_on=None, scores_texts=True)
def score(
    cfg: DictConfig,
    input: str | None,
    repeats: Annotated[int, Gt(0)],
    rows: Annotated[int, Gt(0)],
) -> float:
    """Evaluate the configured estimator `repeats` times on every pair; returns the mean value.

    They go to scores.jsonl, a line for each line of the input with all that it held.
    """
    lines = read_lines(input, Pair)
    record = Record(cfg)
    estimator, policy = build(cfg.estimator), build(cfg.model)
    # all of them before the first is scored: a line that is refused is refused at once
    whole = [
        (portion, sequences_of(policy, portion, cfg.sampler.length)) for portion in portions(lines)
    ]
    path = record.directory / "scores.jsonl"
    scores: list[Scores] = []
    with path.open("w", encoding="utf-8") as file:
        for number, (portion, sequences) in enumerate(whole):
            values = evaluations(
                estimator, policy, sequences, repeats, rows, ("score", cfg.seed, number)
            )
            done = [
                summarize(drawn, length)
                for drawn, length in zip(values.T.tolist(), sequences.length.tolist(), strict=True)
            ]
            write_lines(
                file, ({**line.content, **it} for line, it in zip(portion, done, strict=True))
            )
            scores += done
    return _tell(record, scores, type(estimator).__name__, str(path))


@torch.no_grad()
def evaluations(
    estimator: Estimator,
    policy: Policy,
    sequences: Sequences,
    repeats: int,
    rows: int,
    key: tuple[str | int, ...],
) -> Tensor:
    """Values [repeat, sample] in nats, float64, each repeat with draws of its own.

    rows: samples scored together; memory only. key: of the generators. Draws that are those of the
    first repeat, as with an estimator that draws nothing, are not paid for again.
    """
    found: list[Tensor] = []
    first: Corruption | None = None
    for repeat in range(repeats):
        corruption = estimator.draw(sequences, 1, keyed_generator(*key, repeat))
        if first is not None and _same(corruption, first):
            found.append(found[0])
            continue
        first = corruption if first is None else first
        chunks = (slice(at, at + rows) for at in range(0, len(sequences), rows))
        parts = [estimator(policy, sequences[at], corruption[at]) for at in chunks]
        found.append(Likelihood.join(parts).value.double().cpu())
    return torch.stack(found)


def _same(one: Corruption, other: Corruption) -> bool:
    """Whether two corruptions hide and weigh the same."""
    pairs = [(getattr(one, item.name), getattr(other, item.name)) for item in fields(one)]
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b
        for a, b in pairs
    )


def summarize(values: Sequence[float], tokens: int) -> Scores:
    """What job=score adds to a line, in nats.

    spread: standard deviation between evaluations (n − 1), None for a single one, as is
    standard_error, spread/√n. tokens: those that count, the end token among them.
    """
    value = statistics.fmean(values)
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {
        "value": value,
        "value_per_token": value / tokens,
        "spread": spread,
        "standard_error": None if spread is None else spread / math.sqrt(len(values)),
        "tokens": tokens,
        "evaluations": list(values),
    }


def _tell(record: Record, scores: list[Scores], estimator: str, path: str) -> float:
    """summary.json and the panel; returns the mean value."""
    names = ("value", "value_per_token", "spread")
    means = {
        name: statistics.fmean(item[name] for item in scores)
        for name in names
        if scores[0][name] is not None
    }
    metrics = {"pairs": len(scores), **means}
    rows = [("pairs", f"{len(scores)}, estimator {estimator}")]
    units = dict(zip(names, ("nats", "nats per token", "nats between evaluations"), strict=True))
    rows += [(f"mean {name}", f"{mean:.4f} {units[name]}") for name, mean in means.items()]
    if "spread" in means:  # the draws of different pairs are independent
        errors = [item["standard_error"] for item in scores]
        metrics["standard_error"] = math.hypot(*errors) / len(scores)
        rows.append(("standard error", f"{metrics['standard_error']:.4f} nats, of the mean value"))
    record.finish(metrics, means["value"], rows=[*rows, ("scores", path)])
    return means["value"]
