"""The training processes of one machine: started together, ended together.

They are forked from the command before it imports torch, so they have its configuration and its
directory; nothing is composed twice, in a multirun neither. Lightning finds them started.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from stabledrl.errors import ConfigurationError, UserError
from stabledrl.isolation import (
    GRACE,
    INTERRUPTED,
    Job,
    apart,
    cause_of_death,
    end_without,
    is_interrupt,
)

STARTED = "STABLEDRL_STARTED"  # set in the processes that this module has started
Explain = Callable[[BaseException], str]


class ProcessFailed(Exception):
    """What went wrong in one of the processes: its line, and its traceback."""

    def __init__(self, line: str, details: str) -> None:
        super().__init__(line)
        self.details = details


def is_first() -> bool:
    """Whether this process has rank 0, as far as the environment tells: it speaks and writes."""
    names = ("RANK", "SLURM_PROCID", "LOCAL_RANK")  # as Lightning looks for it
    return next((os.environ[name] for name in names if name in os.environ), "0") == "0"


def started_by_others() -> bool:
    """Whether torchrun, srun or submitit has started this process beside others."""
    if STARTED in os.environ:
        return False
    managed = int(os.environ.get("SLURM_NTASKS", "1")) > 1
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return "LOCAL_RANK" in os.environ or (managed and not interactive)


def places_of(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Processes that a trainer has on each machine, and machines."""
    from stabledrl.settings import number, processes_per_node  # not on the way to --help

    nodes = number(settings, "trainer.num_nodes") or 1
    if settings["trainer"].get("devices", "auto") in ("auto", -1, "-1", None):
        # asks torch, which this process must not have imported when it forks
        return int(apart(lambda: float(processes_per_node(settings))) or 1), nodes
    return processes_per_node(settings), nodes


def together(
    job: Job, count: int, directory: Path, explain: Explain, nodes: int = 1
) -> float | None:
    """What the job returns in process 0 of `count`, which all run it.

    Each of several nodes has a command of its own, with NODE_RANK, MASTER_ADDR and MASTER_PORT.

    The failure of one is that of all: the others are ended, and it is raised here as
    ConfigurationError, UserError or ProcessFailed. KeyboardInterrupt if they were interrupted. What
    processes other than the first print is in process_<number>.log, if anything.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise UserError("trainer.devices: several processes need a system that can fork")
    context = multiprocessing.get_context("fork")
    places = _places(count, nodes)
    members: dict[Any, BaseProcess] = {}
    sys.stdout.flush()  # else all processes write what is in the buffer
    for local_rank in range(count):
        reader, writer = context.Pipe(duplex=False)
        member = _Member(job, local_rank, places[local_rank], directory, explain, os.getpid())
        process = context.Process(target=member, args=(writer,))
        process.start()
        writer.close()
        members[reader] = process
    try:
        return _first_result(members)
    except KeyboardInterrupt:
        _join(members.values(), GRACE)
        raise
    finally:
        _end(members.values())
        for path in directory.glob("process_*.log"):
            if not path.stat().st_size:
                path.unlink()


def _places(count: int, nodes: int) -> list[dict[str, str]]:
    """Environment of every process: who it is, where the first one listens."""
    node = int(os.environ.get("NODE_RANK", "0"))
    threads = str(max(1, (os.cpu_count() or 1) // count))
    shared = {
        STARTED: "1",
        "NODE_RANK": str(node),
        "WORLD_SIZE": str(count * nodes),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": os.environ.get("MASTER_PORT") or str(_free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
    }
    return [
        {**shared, "LOCAL_RANK": str(rank), "RANK": str(node * count + rank)}
        for rank in range(count)
    ]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass(frozen=True)
class _Member:
    """One process: runs the job and sends what came of it."""

    job: Job
    local_rank: int
    environment: Mapping[str, str]
    directory: Path
    explain: Explain
    parent: int

    def __call__(self, writer: Connection) -> None:
        os.environ.update(self.environment)
        threading.Thread(target=end_without, args=(self.parent,), daemon=True).start()
        if not is_first():
            _speak_into(self.directory / f"process_{self.environment['RANK']}.log")
        try:
            message: dict[str, Any] = {"result": self.job()}
        except BaseException as error:
            if is_interrupt(error):
                sys.exit(INTERRUPTED)
            message = {
                "kind": next(k.__name__ for k in KINDS if isinstance(error, k)),
                "line": self.explain(error),
                "details": "".join(traceback.format_exception(error)),
            }
        writer.send_bytes(json.dumps(message).encode())
        writer.close()
        sys.stdout.flush()
        if "line" in message:  # others may wait for this one, and libraries for them
            os._exit(1)


KINDS: tuple[type[BaseException], ...] = (ConfigurationError, UserError, BaseException)


def _speak_into(path: Path) -> None:
    """Send all that this process prints into a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def _first_result(members: Mapping[Any, BaseProcess]) -> float | None:
    """The result of the first process once all have one; the first failure is raised at once."""
    numbers = {reader: number for number, reader in enumerate(members)}
    results: dict[int, float | None] = {}
    while len(results) < len(members):
        open_readers = [reader for reader, number in numbers.items() if number not in results]
        failed: list[Exception] = []
        for reader in wait(open_readers):
            try:
                message = json.loads(reader.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                failed.insert(0, _died(members[reader], numbers[reader], len(members)))
                continue
            if "line" in message:
                failed.append(_failure(message))
            else:
                results[numbers[reader]] = message["result"]
        if failed:
            raise min(failed, key=lambda error: isinstance(error, ProcessFailed))
    return results[0]


def _died(process: BaseProcess, number: int, count: int) -> Exception:
    process.join()
    assert process.exitcode is not None
    if process.exitcode == INTERRUPTED:
        raise KeyboardInterrupt
    return UserError(f"process {number} of {count}: {cause_of_death(process.exitcode)}")


def _failure(message: Mapping[str, str]) -> Exception:
    if message["kind"] == ConfigurationError.__name__:
        return ConfigurationError([message["line"]])
    if message["kind"] == UserError.__name__:
        return UserError(message["line"])
    return ProcessFailed(message["line"], message["details"])


def _join(processes: Sequence[BaseProcess] | Any, seconds: float) -> None:
    """Wait for all of them, no longer than that altogether."""
    until = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))


def _end(processes: Sequence[BaseProcess] | Any) -> None:
    """End those that are left; one that hangs in a library does not hear SIGTERM."""
    for stop in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.is_alive() and process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, stop)
        _join(processes, 2.0)
