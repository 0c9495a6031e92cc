"""job=generate: completions of the prompts in a file, or of the task's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Gt
from omegaconf import DictConfig

from stabledrl.config import build
from stabledrl.declarations import declares
from stabledrl.jobs.lines import Question, portions, read_lines, write_lines
from stabledrl.jobs.policies import build_policy
from stabledrl.jobs.record import Record
from stabledrl.jobs.texts import refuse_unknown
from stabledrl.randomness import keyed_generator
from stabledrl.rollout import Sampled, prompt_record, rendered, sample, truncations

Content = Mapping[str, Any]


@declares(trains_on=None)
def generate(
    cfg: DictConfig,
    input: str | None,
    split: Literal["train", "validation", "test"],
    prompts: Annotated[int, Gt(0)],
    samples: Annotated[int, Gt(0)],
    rows: Annotated[int, Gt(0)],
) -> None:
    """Sample `samples` completions of every prompt with the configured sampler.

    They go to generations.jsonl, a line each with all that the prompt's line held, so that
    job=score can read them, and job=grade where there is `data`.
    """
    lines = None if input is None else read_lines(input, Question)
    record = Record(cfg)
    task = record.using(build(cfg.task))
    sampler, policy = build(cfg.sampler), build_policy(cfg)
    if lines is None:
        items = rendered(policy, task.prompts(split, 0, 0, prompts))
        contents: list[Content] = [prompt_record(item) for item in items]
    else:
        for line in lines:
            refuse_unknown(policy, line.item.prompt, "prompt", line)
        contents = [line.content for line in lines]
    path = record.directory / "generations.jsonl"
    written: list[Content] = []
    with path.open("w", encoding="utf-8") as file:
        for number, portion in enumerate(portions(contents)):
            texts = [str(content["prompt"]) for content in portion]
            generator = keyed_generator("generate", cfg.seed, number)
            found = sample(policy, sampler, texts, samples, generator, rows)
            cut = truncations(found.sequences, policy.facts.end_token_ids, task.fixed_length)
            done = [
                {**portion[index // samples], **_result(found, cut.tolist(), index, samples)}
                for index in range(len(found.texts))
            ]
            write_lines(file, done)
            written += done
    _tell(record, len(contents), written, str(path))


def _result(found: Sampled, cut: list[bool], index: int, samples: int) -> Content:
    """What job=generate adds to a line."""
    return {
        "completion": found.texts[index],
        "tokens": int(found.sequences.length[index]),
        "truncated": cut[index],
        "sample": index % samples,
    }


def _tell(record: Record, prompts: int, written: list[Content], path: str) -> None:
    """summary.json and the panel."""
    count = len(written)
    metrics = {
        "prompts": prompts,
        "completions": count,
        "mean_length": sum(item["tokens"] for item in written) / count,
        "frac_truncated": sum(item["truncated"] for item in written) / count,
        "frac_empty": sum(not item["completion"] for item in written) / count,
    }
    rows = [
        ("completions", f"{count} for {prompts} prompts"),
        ("mean length", f"{metrics['mean_length']:.1f} tokens"),
        ("truncated", f"{metrics['frac_truncated']:.3f}"),
        ("generations", path),
    ]
    record.finish(metrics, None, rows=rows)
