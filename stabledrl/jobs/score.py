"""job=score: likelihood proxies of given completions, with what their noise is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from annotated_types import Gt
from jaxtyping import Float, Int
from omegaconf import DictConfig
from torch import Tensor

from stabledrl.config import build
from stabledrl.declarations import declares
from stabledrl.estimators.chunks import in_chunks
from stabledrl.jobs.lines import Pair, portions, read_lines, write_lines
from stabledrl.jobs.policies import build_policy
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
    estimator, policy = build(cfg.estimator), build_policy(cfg)
    # all of them before the first is scored: a line that is refused is refused at once
    whole = [
        (portion, sequences_of(policy, portion, cfg.sampler.length)) for portion in portions(lines)
    ]
    path = record.directory / "scores.jsonl"
    found: list[Evaluated] = []
    with path.open("w", encoding="utf-8") as file:
        for number, (portion, sequences) in enumerate(whole):
            key = ("score", cfg.seed, number)
            evaluated = evaluations(estimator, policy, sequences, repeats, rows, key)
            scores = summarize(evaluated, sequences.length)
            write_lines(
                file, ({**line.content, **it} for line, it in zip(portion, scores, strict=True))
            )
            found.append(evaluated)
    values = torch.cat([evaluated.value for evaluated in found], 1)
    tokens = torch.cat([sequences.length for _, sequences in whole]).cpu()
    return _tell(record, values, tokens, type(estimator).__name__, str(path))


@dataclass(frozen=True)
class Evaluated:
    """Evaluations of an estimator in nats, float64; negative_score where it has one."""

    value: Float[Tensor, "repeat sample"]
    negative_score: Float[Tensor, "repeat sample"] | None = None


@torch.no_grad()
def evaluations(
    estimator: Estimator,
    policy: Policy,
    sequences: Sequences,
    repeats: int,
    rows: int,
    key: tuple[str | int, ...],
) -> Evaluated:
    """The estimator's values, each repeat with draws of its own.

    rows: samples scored together; memory only. key: of the generators. Draws that are those of the
    first repeat, as with an estimator that draws nothing, are not paid for again.
    """
    found: list[Likelihood] = []
    first: Corruption | None = None
    for repeat in range(repeats):
        corruption = estimator.draw(sequences, 1, keyed_generator(*key, repeat))
        if first is not None and _same(corruption, first):
            found.append(found[0])
            continue
        first = corruption if first is None else first
        found.append(in_chunks(estimator, policy, sequences, corruption, rows))
    negative = [it.negative_score for it in found if it.negative_score is not None]
    value = torch.stack([it.value for it in found]).double().cpu()
    return Evaluated(value, torch.stack(negative).double().cpu() if negative else None)


def _same(one: Corruption, other: Corruption) -> bool:
    """Whether two corruptions hide and weigh the same."""
    pairs = [(getattr(one, item.name), getattr(other, item.name)) for item in fields(one)]
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b
        for a, b in pairs
    )


def summarize(evaluated: Evaluated, tokens: Int[Tensor, " sample"]) -> list[Scores]:
    """What job=score adds to each line, in nats; a NaN stays one.

    spread: standard deviation between evaluations (n − 1), None for a single one, as is
    standard_error, spread/√n. tokens: those that count, the end token among them. negative_score:
    mean of the score that serves A ≤ 0, of an estimator that has one.
    """
    value, repeats = evaluated.value, len(evaluated.value)
    found: dict[str, list[Any]] = {
        "value": value.mean(0).tolist(),
        "value_per_token": (value.mean(0) / tokens.cpu()).tolist(),
        "spread": _deviation(value),
        "standard_error": _deviation(value / math.sqrt(repeats)),
        "tokens": tokens.tolist(),
        "evaluations": value.T.tolist(),
    }
    if evaluated.negative_score is not None:
        found["negative_score"] = evaluated.negative_score.mean(0).tolist()
        found["negative_score_spread"] = _deviation(evaluated.negative_score)
    return [dict(zip(found, line, strict=True)) for line in zip(*found.values(), strict=True)]


def _deviation(value: Float[Tensor, "repeat sample"]) -> list[float | None]:
    """Standard deviation over repeats, None of a single one."""
    return value.std(0).tolist() if len(value) > 1 else [None] * value.shape[1]


def _tell(
    record: Record,
    value: Float[Tensor, "repeat sample"],
    tokens: Int[Tensor, " sample"],
    estimator: str,
    path: str,
) -> float:
    """summary.json and the panel; returns the mean value.

    The error of the mean is that between evaluations of all pairs: pairs may share a draw.
    """
    repeats, pairs = value.shape
    mean = value.mean(0)
    lost = int((~value.isfinite()).any(0).sum())
    found = {
        "value": (float(mean.mean()), "nats"),
        "value_per_token": (float((mean / tokens).mean()), "nats per token"),
    }
    if repeats > 1:
        error = float(value.mean(1).std()) / math.sqrt(repeats)
        found["spread"] = (float(value.std(0).mean()), "nats between evaluations")
        found["standard_error"] = (error, "nats, of the mean value")
    rows = [("pairs", f"{pairs}, estimator {estimator}")]
    rows += [(f"mean {name}", f"{number:.4f} {unit}") for name, (number, unit) in found.items()]
    if lost:
        rows.append(("not finite", f"{lost} pairs have a likelihood that is NaN or infinite"))
    metrics = {name: number for name, (number, _) in found.items()}
    record.finish(
        {"pairs": pairs, "not_finite": lost, **metrics},
        metrics["value"],
        rows=[*rows, ("scores", path)],
    )
    return metrics["value"]
