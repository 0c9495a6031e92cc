"""job=evaluate: greedy solve rate and pass@k of a model on a split."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from annotated_types import Ge, Gt
from omegaconf import DictConfig

from stabledrl.config import build
from stabledrl.declarations import declares
from stabledrl.functional.evaluation import pass_at_k, wilson_interval
from stabledrl.jobs.policies import build_policy
from stabledrl.jobs.record import Record
from stabledrl.randomness import keyed_generator
from stabledrl.rollout import collect, records


@declares(trains_on=None)
def evaluate(
    cfg: DictConfig,
    split: Literal["train", "validation", "test"],
    prompts: Annotated[int, Gt(0)],
    k: Annotated[int, Ge(0)],
) -> float:
    """Decode greedily, and `k` times at sampler.temperature; returns the greedy solve rate.

    The completions go to completions/{greedy,sampled}.jsonl, the numbers to summary.json.
    """
    record = Record(cfg)
    task = record.using(build(cfg.task))
    sampler, policy = build(cfg.sampler), build_policy(cfg)
    items = task.prompts(split, 0, 0, prompts)
    metrics: dict[str, float] = {}
    folder = record.directory / "completions"
    folder.mkdir(exist_ok=True)
    for name, decoder, size in (("greedy", sampler.greedy(), 1), ("sampled", sampler, k)):
        if size == 0:
            continue
        generator = keyed_generator("evaluate", cfg.seed)
        rollout = collect(policy, decoder, task, items, size, generator, cfg.rollout.sampling_rows)
        with (folder / f"{name}.jsonl").open("w") as file:
            file.writelines(json.dumps(item) + "\n" for item in records(rollout))
        metrics[f"{name}/solved"] = float(rollout.solved.mean())
        metrics[f"{name}/reward"] = float(rollout.reward.nanmean())
        if size > 1:
            metrics[f"{name}/pass_at_{k}"] = float(pass_at_k(rollout.solved > 0, k).mean())
    low, high = wilson_interval(metrics["greedy/solved"], prompts)
    rows = [
        (f"greedy solve rate, {split}", f"{metrics['greedy/solved']:.3f} [{low:.3f}, {high:.3f}]")
    ]
    rows += [(name, f"{value:.3f}") for name, value in metrics.items() if name != "greedy/solved"]
    record.finish({**metrics, "greedy/solved_95": [low, high]}, metrics["greedy/solved"], rows=rows)
    return metrics["greedy/solved"]
