"""Arms of a comparison: runs that differ in nothing but their seed, named by their differences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain, count
from typing import Any

from stabledrl.diagnostics.runs import IMMATERIAL, Run

PRESETS = ("experiment", "algorithm")  # choose several groups at once: named first
ABSENT = "–"
Setting = tuple[str, dict[str, str]]  # name, and its value in each arm


def by_task(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each task, by its name: solve rates of different tasks are no ranking.

    A run that failed before it had settings goes with those of the same overrides, or the first.
    """
    tasks = {run.directory: _task(run) for run in runs if run.settings}
    like = {(run.directory.parent, run.overrides): _task(run) for run in runs if run.settings}
    first = next(iter(tasks.values()), "")
    found: dict[str, list[Run]] = {}
    for run in runs:
        guess = like.get((run.directory.parent, run.overrides), first)
        found.setdefault(tasks.get(run.directory, guess), []).append(run)
    return found


def _task(run: Run) -> str:
    """Name of the class of its task."""
    return str(run.settings.get("task._target_", "")).rpartition(".")[2]


def label_arms(runs: Sequence[Run]) -> list[Run]:
    """The runs with their arms named, in the natural order of arm and seed.

    A label holds as few settings as tell the arms apart: the group choices first, then single keys
    where arms of the same choices still differ. A run that failed before it had settings goes to
    the arm of the runs with the same overrides.
    """
    keys = {run.directory: _key(run) for run in runs}
    by_overrides = {
        (run.directory.parent, run.overrides): keys[run.directory] for run in runs if run.settings
    }
    for run in runs:
        if not run.settings and run.overrides:
            known = by_overrides.get((run.directory.parent, run.overrides))
            keys[run.directory] = known or keys[run.directory]
    arms: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: not run.settings):  # those with settings speak for all
        arms.setdefault(keys[run.directory], run)
    labels = _labels(arms)
    named = [replace(run, arm=labels[keys[run.directory]]) for run in runs]
    return sorted(named, key=lambda run: (natural(run.arm), run.seed or 0, str(run.directory)))


def without_repeats(runs: Sequence[Run]) -> list[Run]:
    """One run per settings and seed, a finished one if there is: a repeat is no further evidence.

    Sweeps share cells, and the same settings and seed give the same run.
    """
    kept: dict[tuple[str, str], Run] = {}
    for run in sorted(runs, key=lambda run: run.status != "finished"):  # stable
        known = run.settings and run.seed is not None
        kept.setdefault((_key(run), str(run.seed if known else run.directory)), run)
    return [run for run in runs if any(run is one for one in kept.values())]


def select_arms(runs: Sequence[Run], patterns: Sequence[str]) -> list[Run]:
    """The labelled runs whose arm matches a pattern such as `*group`; all if there is no pattern.

    Raises ValueError, which names pattern and arms, for a pattern that matches none.
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    for pattern in patterns:
        if not any(fnmatchcase(arm, pattern) for arm in arms):
            raise ValueError(f"no arm matches {pattern!r}; arms: {'; '.join(arms)}")
    kept = {arm for arm in arms if any(fnmatchcase(arm, item) for item in patterns or ["*"])}
    return [run for run in runs if run.arm in kept]


def settings_that_differ(runs: Iterable[Run]) -> dict[str, dict[str, str]]:
    """Dotted key -> value by arm, of all settings in which labelled arms differ."""
    arms = {run.arm: run for run in runs if run.settings}
    return {name: values for name, values in _settings(arms) if _vary(values)}


def natural(text: str) -> list[tuple[float, str]]:
    """Sort key in which numbers count as numbers: 5 before 100, 0.2 before 1."""
    pieces = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return [
        (float(piece), "") if index % 2 else (-1.0, piece) for index, piece in enumerate(pieces)
    ]


def _key(run: Run) -> str:
    if run.settings:
        return json.dumps(run.settings, sort_keys=True, default=str)
    return f"{run.directory.parent} {run.overrides or run.directory.name}"


def _labels(arms: Mapping[str, Run]) -> dict[str, str]:
    """Label by arm: candidates are taken in while they still split arms that look alike."""
    known = {arm: run for arm, run in arms.items() if run.settings}
    labels: dict[str, list[str]] = {arm: [] for arm in known}
    for name, values in [*_choices(known), *_shortened(_settings(known))]:
        if _splits(labels, values):
            for arm, parts in labels.items():
                parts.append(f"{name}={values[arm]}")
    alone = "all runs"
    found = {arm: " ".join(parts) or _only(known[arm]) or alone for arm, parts in labels.items()}
    for arm, run in arms.items():
        found.setdefault(arm, " ".join(run.overrides) or run.directory.name)
    return _distinct(found)


def _distinct(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels that no two arms share: of runs without settings nobody knows that they are alike."""
    found: dict[str, str] = {}
    for arm, label in labels.items():
        numbered = (f"{label} ({number})" for number in count(2))
        taken = set(found.values())
        found[arm] = next(text for text in chain([label], numbered) if text not in taken)
    return found


def _only(run: Run) -> str:
    """Name of an arm that is compared with no other."""
    chosen = run.choices.get("algorithm")
    return f"algorithm={chosen}" if chosen else ""


def _splits(labels: Mapping[str, list[str]], values: Mapping[str, str]) -> bool:
    """Whether a setting varies among arms with the same label so far."""
    seen: dict[tuple[str, ...], str] = {}
    return any(
        seen.setdefault(tuple(parts), values[arm]) != values[arm] for arm, parts in labels.items()
    )


def _vary(values: Mapping[str, str]) -> bool:
    return len(set(values.values())) > 1


def _choices(arms: Mapping[str, Run]) -> list[Setting]:
    """Options by group; none where some run has no record of them."""
    if not all(run.choices for run in arms.values()):
        return []
    groups = {group for run in arms.values() for group in run.choices}
    ignored = {"sweeps", "local", *IMMATERIAL}
    counted = [g for g in groups if "/" not in g.lstrip("/") and g not in ignored]
    counted.sort(key=lambda group: (group not in PRESETS, group))
    return [
        (group, {arm: run.choices.get(group, "null") for arm, run in arms.items()})
        for group in counted
    ]


def _settings(arms: Mapping[str, Run]) -> list[Setting]:
    """Dotted keys, what a group builds before its numbers."""
    keys = sorted({key for run in arms.values() for key in run.settings})
    keys.sort(key=lambda key: not key.endswith("_target_"))
    return [(key, _texts(key, {arm: run.settings for arm, run in arms.items()})) for key in keys]


def _texts(key: str, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """A setting's value in each arm, short unless other values would then read the same."""
    short = {arm: _written(key, own) for arm, own in settings.items()}
    exact = {arm: _exact(key, own) for arm, own in settings.items()}
    return short if len(set(short.values())) == len(set(exact.values())) else exact


def _exact(key: str, settings: Mapping[str, Any]) -> str:
    """As in the key of an arm: 1 is not 1.0, which Lightning reads as all batches."""
    if key not in settings:
        return ABSENT
    value = settings[key]
    built = key.endswith("_target_") and isinstance(value, str)
    return value if built else json.dumps(value, sort_keys=True, default=str)


def _written(key: str, settings: Mapping[str, Any]) -> str:
    """A value on one short line; of what is built, the function's name."""
    if key not in settings:
        return ABSENT
    value = settings[key]
    if key.endswith("_target_"):
        return str(value).rpartition(".")[2]
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else " ".join(str(value).split())


def _shortened(settings: Sequence[Setting]) -> list[Setting]:
    """The settings that vary, by the last part of their keys where that says which is meant."""
    varying = [(key.removesuffix("._target_"), values) for key, values in settings if _vary(values)]
    last = [key.rpartition(".")[2] for key, _ in varying]
    return [
        (short if last.count(short) == 1 else key, values)
        for short, (key, values) in zip(last, varying, strict=True)
    ]
