"""Keys and values against signatures: what is not what the code asks for, in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Gt

from stabledrl.binding import locate, value_faults, walk

FRACTION = "got a number with a fractional part"


@dataclass
class Part:
    """A value with a name inside a container, as `task.rewards` has them."""

    weight: float | None = None


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        # a whole number is written as one
        (8, int, ""),
        (8.0, int, "x=8.0: should be of type int"),
        ("8", int, "x='8': should be of type int"),
        (True, int, "x=True: should be of type int"),
        (8.0, Annotated[int, Gt(0)] | None, "x=8.0: should be of type int"),
        (8.5, int, "x=8.5: should be a valid integer, " + FRACTION),
        # a float may be written without a point
        (8, float, ""),
        (8.0, float, ""),
        ("8", float, "x='8': should be of type float"),
        (True, float, "x=True: should be of type float"),
        # where both are meant, both may stand
        (8.0, int | float, ""),
        ("8", int | str, ""),
        (True, bool | int, ""),
        (1, bool, "x=1: should be of type bool"),
        ("true", bool, "x='true': should be of type bool"),
        (2, Literal[1, 2], ""),
        # inside containers
        ([1, 2], tuple[int, ...], ""),
        ([1, 2.0], tuple[int, ...], "x[1]=2.0: should be of type int"),
        ([1, 2.0], list[float], ""),
        ({"a": "3"}, Mapping[str, int], "x.a='3': should be of type int"),
        ({"a": {"weight": 1}, "b": {"weight": None}, "c": {}}, dict[str, Part], ""),
        ({"a": {"weight": True}}, dict[str, Part], "x.a.weight=True: should be of type float"),
        ({"a": {"weight": "1"}}, dict[str, Part], "x.a.weight='1': should be of type float"),
        # refused by pydantic itself: the place is the user's, not the tried member of a union
        (
            {"a": [1, 2.5]},
            dict[str, list[int]],
            "x.a[1]=2.5: should be a valid integer, " + FRACTION,
        ),
        (
            [{"a": 2.5}],
            list[str | dict[str, int]],
            "x[0]={'a': 2.5}: should be a valid string; "
            "x[0].a=2.5: should be a valid integer, " + FRACTION,
        ),
    ],
    ids=str,
)
def test_numbers_are_what_they_are_written_as(value, annotation, expected):
    assert "; ".join(str(fault) for fault in value_faults("x", value, annotation)) == expected


def test_annotations_yaml_cannot_meet_are_left_alone():
    from torch import Tensor

    assert list(value_faults("x", 1, Tensor)) == []
    assert list(value_faults("x", 1, Tensor | None)) == []
    assert [str(fault) for fault in value_faults("x", "a", Tensor | float)]


def told(path: str, target: str, **settings: Any) -> str:
    return "\n".join(str(fault) for fault in walk(path, {"_target_": target, **settings}))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"precision": "bf16-mixed", "gradient_clip_val": 1.0, "strategy": "ddp"}, ""),
        ({"acumulate_grad_batches": 2}, "did you mean 'accumulate_grad_batches'?"),
        ({"precision": "bf17"}, "precision='bf17'"),
        ({"max_epochs": "many"}, "max_epochs='many': should be a valid integer"),
        ({"max_epochs": 3.0}, "max_epochs=3.0: should be of type int"),
    ],
)
def test_a_third_party_class_is_checked_too(settings, expected):
    found = told("trainer", "lightning.pytorch.Trainer", **settings)
    assert expected in found
    assert bool(expected) == bool(found)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"epsilon": -1}, "clipping.epsilon=-1: should be greater than 0"),
        ({"epsilonn": 1}, "did you mean 'epsilon'?"),
        ({"epsilon": 4}, ""),
    ],
)
def test_a_real_clipping(settings, expected):
    target = "stabledrl.functional.clipping.unconditional"
    found = told("clipping", target, _partial_=True, **settings)
    assert expected in found
    assert bool(expected) == bool(found)


PRETRAIN = {
    "_target_": "stabledrl.jobs.pretrain.pretrain",
    "batch_size": 64,
    "steps_per_epoch": 100,
}
EVALUATE = {
    "_target_": "stabledrl.jobs.evaluate.evaluate",
    "split": "test",
    "prompts": 8,
    "samples": 4,
    "k": None,
    "lengths": [8, 16],
    "steps": None,
}


@pytest.mark.parametrize(
    ("job", "changes", "expected"),
    [
        (PRETRAIN, {}, []),
        (PRETRAIN, {"batch_size": 0}, ["job.batch_size=0: should be greater than 0"]),
        (PRETRAIN, {"batch_size": 64.0}, ["job.batch_size=64.0: should be of type int"]),
        (PRETRAIN, {"steps_per_epoch": -1}, ["job.steps_per_epoch=-1: should be greater than 0"]),
        (EVALUATE, {}, []),
        (EVALUATE, {"samples": 4.0}, ["job.samples=4.0: should be of type int"]),
        (EVALUATE, {"samples": True}, ["job.samples=True: should be of type int"]),
        (EVALUATE, {"samples": -1}, ["job.samples=-1: should be greater than or equal to 0"]),
        (EVALUATE, {"k": 4}, ["job.k=4: should be a valid list"]),
        (EVALUATE, {"k": [1, 0]}, ["job.k[1]=0: should be greater than 0"]),
        (EVALUATE, {"lengths": [8.0]}, ["job.lengths[0]=8.0: should be of type int"]),
        (
            EVALUATE,
            {"promts": 8},
            ["job.promts: stabledrl.jobs.evaluate.evaluate: unknown key; did you mean 'prompts'?"],
        ),
    ],
    ids=str,
)
def test_keys_of_jobs(job, changes, expected):
    found = walk("job", job | changes, frozenset({"cfg"}))
    assert [str(fault) for fault in found] == expected


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    (tmp_path / "needs_another.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(LookupError, match="needs the package 'not_installed_anywhere'"):
        locate("needs_another.Thing")
