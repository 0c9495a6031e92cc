"""What may stand in the configuration: the model `Root`, checked by `stabledrl.config.validate`.

A group is a `Component` (a dict with `_target_`, checked against what it names), `Components` (a
set of them), or a frozen dataclass here for groups that are plain values. To add a group or a
scalar, add a field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import pydantic
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from stabledrl.binding import MISSING, Fault, sentence
from stabledrl.errors import unknown_key

STRICT = ConfigDict(extra="forbid", frozen=True)


def _require_target(value: Any) -> Any:
    if isinstance(value, Mapping) and "_target_" not in value:
        raise ValueError("needs a `_target_`: an option of this group names what it builds")
    return value


# The one thing a group builds, and a set of them by name (an entry may be null: switched off).
Component = Annotated[dict[str, Any], BeforeValidator(_require_target)]
Components = dict[str, Component | None]
# Strict, so that 8.0, '8' and true are no whole numbers.
Positive = Annotated[int, Field(gt=0, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


@pydantic.dataclasses.dataclass(config=STRICT)
class RolloutSettings:
    """Sizes of a phase: conf/rollout."""

    prompts_per_phase: Positive
    group_size: Positive
    inner_updates: Positive
    prompts_per_batch: Positive
    sampling_rows: Positive
    validation_prompts: Positive
    training_rows: Positive | None = None
    drift_every: Annotated[int, Field(ge=0, strict=True)] = 0
    max_prompt_length: Positive | None = None


@pydantic.dataclasses.dataclass(config=STRICT)
class MaskingSettings:
    """What a draw hides, and which draws go together: conf/masking."""

    pairing: str
    pairs: Component
    pattern: Component


@pydantic.dataclasses.dataclass(config=STRICT)
class PathSettings:
    """Where things lie: conf/paths."""

    output_dir: str
    multirun_dir: str
    run_dir: str


@pydantic.dataclasses.dataclass(config=STRICT)
class ExtraSettings:
    """Comforts around a run: conf/extras."""

    print_config: Flag = True
    skip_finished: Flag = True
    threads: Positive | None = None
    report: Flag = True


class Root(pydantic.BaseModel):
    """Everything that may stand at the top level of the configuration."""

    model_config = STRICT

    seed: Annotated[int, Field(ge=0, strict=True)]
    ckpt_path: str | None
    name: str | None
    tags: list[str]
    optimized_metric: str | None

    job: Component
    model: Component
    attention: Component
    adapter: Component
    acceleration: Component
    task: Component
    rollout: RolloutSettings
    ratio: Component
    estimator: Component
    masking: MaskingSettings
    clipping: Component
    normalization: Component
    advantage: Component
    group_filter: Component
    kl: Component | None = None
    sampler: Component
    optimizer: Component
    scheduler: Component | None = None
    trainer: Component
    callbacks: Components | None = None
    logger: Components | None = None
    paths: PathSettings
    extras: ExtraSettings


def schema_faults(plain: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of the top level and of the groups that have a schema, in words."""
    try:
        Root.model_validate(plain)
    except ValidationError as error:
        for entry in error.errors():
            if entry["input"] is MISSING:
                continue
            *parents, key = [str(part) for part in entry["loc"]]
            yield Fault(".".join([*parents, key]), _words(entry, parents, key))


def _words(entry: Mapping[str, Any], parents: list[str], key: str) -> str:
    schema = Root.model_fields[parents[0]].annotation if parents else Root
    if entry["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        fields = getattr(schema, "model_fields", None) or getattr(schema, "__pydantic_fields__", {})
        return unknown_key(key, fields)
    if entry["type"] in {"missing", "missing_argument"}:
        return "missing"
    value = entry["input"]
    return sentence(entry) + ("" if isinstance(value, Mapping | list) else f", not {value!r}")
