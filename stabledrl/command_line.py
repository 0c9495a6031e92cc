"""From the command line to a job: Hydra, readable failures, exit codes.

Nothing heavy is imported here: `--help` and `--cfg` must answer at once.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stabledrl.config import register_resolvers, validate
from stabledrl.errors import (
    ConfigurationError,
    UserError,
)
from stabledrl.explanations import explain
from stabledrl.fingerprint import resolved_hash
from stabledrl.isolation import INTERRUPTED, Job, apart, is_interrupt
from stabledrl.launch import ProcessFailed, is_first, places_of, started_by_others, together

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)
failures: list[str] = []  # of the jobs of this command, one line each
WANTS_TRACEBACK = "STABLEDRL_TRACEBACK"  # the user's own HYDRA_FULL_ERROR, for child processes too

register_resolvers()  # at import: a launcher's child process imports this module before it composes


def main(config_directory: Path) -> int:
    """Run the command in sys.argv; the exit code. Never shows a traceback nobody asked for."""
    os.environ.setdefault(WANTS_TRACEBACK, os.environ.get("HYDRA_FULL_ERROR", "0"))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that Hydra hands its exceptions to us
    entry = hydra.main(config_path=str(config_directory), config_name="config", version_base="1.3")
    try:
        entry(run_job)()
    except (KeyboardInterrupt, SystemExit) as stop:
        if is_interrupt(stop):
            return INTERRUPTED
        raise
    except Exception as error:
        report(error)
        return 1
    return 1 if failures else 0


def run_job(cfg: DictConfig) -> float | None:
    """Run the job that the group `job` names and return its metric (nan if it failed).

    In a multirun it is passed over if it is finished, and else runs in a process of its own. A job
    of several training processes runs in all of them.
    """
    alone = partial(_recorded, partial(_in_processes, cfg))
    return _recorded(partial(_unless_finished, cfg, alone)) if _is_multirun() else alone()


def _unless_finished(cfg: DictConfig, job: Job) -> float | None:
    """The metric of a finished run of the same sweep and configuration, or else of the job."""
    done = finished_before(cfg, _directory()) if cfg.extras.skip_finished else None
    if done is None:
        return apart(job)
    log.info("skipped, already finished: %s", done.parent)
    return _number(json.loads(done.read_text()).get("optimized_metric"))


def _in_processes(cfg: DictConfig) -> float | None:
    """The job in as many processes as the trainer has on this machine; in this one if it is one."""
    if started_by_others():
        _require_common_directory()
        return _validated(cfg)
    count, nodes = _places(cfg)
    if count * nodes == 1:
        return _validated(cfg)
    if nodes > 1:
        _require_common_directory()
    return together(partial(_validated, cfg), count, _directory(), explain, nodes)


def _places(cfg: DictConfig) -> tuple[int, int]:
    """Processes of this machine, and machines; 1 where keys are wrong, which validation tells."""
    try:
        plain: Any = {"trainer": OmegaConf.to_container(cfg.trainer, resolve=True)}
    except OmegaConfBaseException:
        return 1, 1
    return places_of(plain)


def _require_common_directory() -> None:
    """Every command names its run directory after its own time, unless it is told."""
    given = any(item.startswith("hydra.run.dir=") for item in HydraConfig.get().overrides.hydra)
    if not (given or _is_multirun()):
        several = "processes that several commands start (torchrun, srun, one per node)"
        wanted = "have to be given one directory: hydra.run.dir=<directory>"
        raise ConfigurationError([f"hydra.run.dir: {several} {wanted}"])


def _validated(cfg: DictConfig) -> float | None:
    """Run the job if its configuration is good."""
    from stabledrl.settings import trains_on  # not on the way to --help

    if not is_first():
        logging.disable()  # one tells
    validate(cfg)
    _refuse_unknown_local(HydraConfig.get())
    if not is_first() and trains_on(cfg) is None:
        return None  # what does not train is for one process
    settings = {str(key): value for key, value in cfg.job.items() if key != "_target_"}
    job = hydra.utils.get_method(cfg.job._target_)
    return _number(job(cfg, **settings))


def _recorded(job: Job) -> float | None:
    """Run it; a failure is reported, recorded in the job's directory, and makes the metric nan."""
    directory = _directory()
    before = _stamp(directory / "summary.json")
    try:
        return job()
    except Exception as error:
        if not is_first():  # all that others have started have its fate
            failures.append(explain(error))
            return math.nan
        line = report(error, directory / "run.log")
        own = _stamp(directory / "summary.json") != before
        finished = _read_summary(directory / "summary.json").get("status") == "finished"
        # one that is not its own means that a finished run was to go on and never began
        if finished and own:
            _note_failure(directory, line)
        elif _is_multirun() or not (finished or isinstance(error, ConfigurationError)):
            _record_failure(directory, line)
        failures.append(f"{directory}: {line}")
        return math.nan


def _directory() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def _is_multirun() -> bool:
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)


def finished_before(cfg: DictConfig, directory: Path) -> Path | None:
    """summary.json of a finished job with the same resolved configuration in the same sweep."""
    for path in sorted(directory.parent.glob(f"*-{resolved_hash(cfg)}/summary.json")):
        if _read_summary(path).get("status") == "finished":
            return path
    return None


class Failures(Callback):
    """Hydra callback: finds the jobs of a multirun that failed, whatever process they ran in."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Remember the summaries that are already there."""
        self.before = dict(self._failed(config))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Name the new ones that hold an error."""
        new = [path for path, stamp in self._failed(config) if self.before.get(path) != stamp]
        failures[:] = [f"{path.parent}: {_read_summary(path).get('error')}" for path in new]
        if failures:
            print(f"error: failed jobs: {len(failures)}", *failures, sep="\n  ", file=sys.stderr)

    @staticmethod
    def _failed(config: DictConfig) -> Iterator[tuple[Path, int]]:
        for path in sorted(Path(config.hydra.sweep.dir).glob("*/summary.json")):
            if _read_summary(path).get("error"):
                yield path, _stamp(path)


class Report(Callback):
    """Hydra callback: report.md, report.html and figures/ of a multirun, in its folder."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Write them if there are runs; what goes wrong costs the report only, never the runs."""
        folder = Path(config.hydra.sweep.dir)
        try:
            wanted = OmegaConf.select(config, "extras.report", default=True)
            if not wanted or not any(folder.glob("*/config.yaml")):
                return
            from stabledrl.jobs.comparison import compare, runs_below  # matplotlib, torch

            page = compare(runs_below(folder), folder, f"Multirun {folder.name}")
            print(f"report: {page}")
        except Exception as error:
            print(f"warning: no report of {folder}: {explain(error)}", file=sys.stderr)


def report(error: Exception, log_file: Path | None = None) -> str:
    """Print the error as one line to stderr, its traceback to the log; returns the line."""
    line = explain(error)
    details = "".join(traceback.format_exception(error))
    if isinstance(error, ProcessFailed):
        details = error.details
    expected = isinstance(error, UserError | HydraException | OmegaConfBaseException)
    if log_file is not None and log_file.parent.is_dir():
        with log_file.open("a") as file:
            file.write(f"error: {line}\n" if expected else details)
    wanted = os.environ.get(WANTS_TRACEBACK) == "1"
    if wanted:
        print(details, file=sys.stderr)
    hint = "" if wanted or expected else " (HYDRA_FULL_ERROR=1 shows the traceback)"
    print(f"error: {line}{hint}", file=sys.stderr, flush=True)
    return line


def _refuse_unknown_local(context: Any) -> None:
    """Refuse a mistyped `local=`: the group is optional, so Hydra passes over it in silence."""
    choice = OmegaConf.select(context, "runtime.choices.local")
    folders = [Path(source.path, "local") for source in context.runtime.config_sources]
    if choice and choice != "default" and not any((f / f"{choice}.yaml").exists() for f in folders):
        raise ConfigurationError([f"local={choice}: there is no conf/local/{choice}.yaml"])


def _record_failure(directory: Path, line: str) -> None:
    """Leave summary.json with the failure."""
    failure = json.dumps({"status": "failed", "error": line}, indent=2)
    (directory / "summary.json").write_text(failure + "\n")


def _note_failure(directory: Path, line: str) -> None:
    """Add to summary.json what went wrong once the result was written, which stays."""
    path = directory / "summary.json"
    unfinished = path.with_suffix(".json.part")
    unfinished.write_text(json.dumps(_read_summary(path) | {"error": line}, indent=2) + "\n")
    unfinished.replace(path)  # a kill leaves the result whole


def _stamp(path: Path) -> int:
    """When a file was written, in nanoseconds; 0 if there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
