"""The report of a comparison: report.md, a self-contained report.html, and figures/."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stabledrl.diagnostics.arms import by_task, label_arms, select_arms, without_repeats
from stabledrl.diagnostics.figures import COLLAPSE, Drawing, draw
from stabledrl.diagnostics.runs import Run
from stabledrl.diagnostics.summaries import ArmSummary, ranked, summarize
from stabledrl.diagnostics.tables import (
    arm_table,
    markdown,
    not_finished,
    plain,
    run_table,
    settings_table,
)

NOTES = (
    "An arm is the runs that differ in nothing but their seed; of runs with the same settings and "
    "seed one is kept. Numbers of an arm are over its finished runs: mean ± sample standard "
    "deviation. Arms are in the order of their final held-out solve rate, those of each task by "
    "themselves; a task is its class, settings that differ are in the label.",
    "Collapsed: the 10-phase mean of the training solve rate falls below half its running maximum "
    "and is not back above 60 % of it by the end. The interval is Wilson's, 95 %.",
    "First signal: what most often moved first among the collapsed runs. Peak gradient norm: the "
    "largest of each run, its median and maximum over runs. Ratio noise: standard deviation of "
    "the log-ratio where the policy is still the old one, in nats. Final training solve rate: "
    "mean of the last 10 phases.",
    "Figures: thin lines are runs, bold ones the mean of the finished runs of the arm, smoothed "
    "over 10 phases where there are as many, up to where the first of them ends; a cross marks "
    f"where a {COLLAPSE}.",
)


@dataclass(frozen=True)
class Section:
    """The runs of one task. title: its name, empty where there is no other."""

    title: str
    runs: Sequence[Run]
    drawings: Sequence[Drawing]

    @cached_property
    def arms(self) -> list[ArmSummary]:
        """In the order of their final held-out solve rate."""
        return ranked(summarize(self.runs))


def write_report(
    runs: Sequence[Run], directory: Path, title: str, arms: Sequence[str] = ()
) -> Path:
    """Compare runs in `directory`, those of each task by themselves; returns report.html's path.

    arms: patterns of the labels of those to keep, all if there are none. Raises ValueError if none
    of the runs has finished, as there would be nothing to compare, or a pattern matches no arm.
    """
    if not any(run.status == "finished" for run in runs):
        raise ValueError(f"no finished run among {len(runs)}")
    tasks = by_task(without_repeats(runs)).values()
    kept = by_task(select_arms([run for members in tasks for run in label_arms(members)], arms))
    directory.mkdir(parents=True, exist_ok=True)
    sections = []
    for task, members in kept.items():
        alone = len(kept) == 1
        drawings = draw(members, directory / "figures" / ("" if alone else task))
        sections.append(Section("" if alone else task, members, drawings))
    (directory / "report.md").write_text(_markdown(sections, directory, title))
    page = directory / "report.html"
    page.write_text(_html(sections, title))
    return page


def sentence(arm: ArmSummary) -> str:
    """What became of an arm, in words; its label comes first."""
    if not arm.finished:
        return f"{arm.arm}: no run finished."
    if not arm.judged:
        return f"{arm.arm}: {arm.finished} finished, no training solve rate was logged."
    told = f"{arm.arm}: collapsed in {arm.collapsed} of {arm.judged}{not_finished(arm)}"
    signal = f", first signal {arm.first_signal}" if arm.first_signal else ""
    rate = f"; final held-out solve rate {arm.final_held_out}"
    return f"{told}{signal}{rate if arm.final_held_out.mean >= 0 else ''}."


def origin(runs: Iterable[Run]) -> str:
    """Machines, commits and torch versions that the runs recorded."""
    told = []
    for name, values in (
        ("machine", [run.summary.get("machine") for run in runs]),
        ("commit", [run.summary.get("git_commit") for run in runs]),
        ("torch", [(run.summary.get("versions") or {}).get("torch") for run in runs]),
    ):
        if known := sorted({str(value) for value in values if value}):
            told.append(f"{name} {', '.join(known)}")
    return "; ".join(told)


def _markdown(sections: Sequence[Section], directory: Path, title: str) -> str:
    parts = [f"# {plain(title)}"]
    for section in sections:
        settings = settings_table(section.runs)
        pictures = [
            f"![{item.title}]({item.path.relative_to(directory)})\n\n{item.caption}"
            for item in section.drawings
        ]
        of = f" ({plain(section.title)})" if section.title else ""
        parts += [
            f"## Arms{of}",
            "\n".join(f"- {plain(sentence(arm))}" for arm in section.arms),
            markdown(arm_table(section.arms)),
            *([f"## Figures{of}", *pictures] if pictures else []),
            f"## Runs{of}",
            markdown(run_table(section.runs)),
            *([f"## Settings that differ{of}", markdown(settings)] if settings.rows else []),
        ]
    parts += ["## How to read this", *NOTES, plain(origin(_all_runs(sections)))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _html(sections: Sequence[Section], title: str) -> str:
    """One file that needs no other: the pictures are inside."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        title=title,
        sections=[
            {
                "title": section.title,
                "sentences": [sentence(arm) for arm in section.arms],
                "arms": arm_table(section.arms),
                "runs": run_table(section.runs),
                "settings": settings_table(section.runs),
                "figures": [
                    (item, base64.b64encode(item.path.read_bytes()).decode())
                    for item in section.drawings
                ],
            }
            for section in sections
        ],
        notes=NOTES,
        origin=origin(_all_runs(sections)),
    )


def _all_runs(sections: Iterable[Section]) -> list[Run]:
    return [run for section in sections for run in section.runs]
