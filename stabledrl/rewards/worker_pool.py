"""Processes that check answers, each of which may be killed: the way to grade what may hang.

A limit inside a process is none: SIGALRM works in the main thread only, and not while C code
multiplies integers of a million digits. So checks run in other processes, requests and answers are
lines of JSON (nothing is unpickled), and a process that is over its time is killed and replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stabledrl.rewards.worker import READY

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 2 << 30  # bytes of address space; sympy takes a quarter of it
CHECKS = 10_000  # by one process, which is then replaced: caches of libraries grow (2 KB a check)
START_LIMIT_S = 120.0  # imports on a busy machine
# of the environment; credentials and whatever else there is stay here
KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV")
TIMEOUT, CRASH = "timeout", "crash"


@dataclass(frozen=True)
class Checked:
    """What became of one check.

    value: what the function returned. failure: "" or why there is no value: "timeout", "crash" (the
    process died), or the name of the exception that the function raised.
    """

    value: Any = None
    failure: str = ""

    @property
    def lost(self) -> str:
        """ "took too long" or "broke off" where the process was ended, so that nobody knows."""
        return {TIMEOUT: "took too long", CRASH: "broke off"}.get(self.failure, "")


@dataclass
class Worker:
    """One process with what it is working on and what it has written of its answer so far."""

    process: subprocess.Popen[bytes]
    request: str | None = None
    deadline: float = 0.0
    checks: int = 0
    received: bytearray = field(default_factory=bytearray)


class WorkerPool:
    """Checks by `function` ("package.module:name", JSON in and out) in `processes` processes.

    The function must be pure: equal requests of a call are checked once, and results come in the
    order of the requests, so the number of processes changes nothing.

    time_limit_s: wall-clock seconds for one check. memory: bytes of address space of a process.
    first: a request that each process answers before its first check, without that limit: what
    takes long only once.
    timeouts, crashes: how many checks have ended so, ever.
    Processes start with the first check, and end with `close`, when the pool is forgotten, or with
    this process, however that ends.
    """

    def __init__(
        self,
        function: str,
        processes: int,
        time_limit_s: float,
        memory: int = MEMORY,
        first: Any = None,
    ) -> None:
        if processes < 1 or time_limit_s <= 0:
            raise ValueError("a pool needs at least one process and a time limit above 0")
        self.function, self.processes, self.time_limit_s = function, processes, time_limit_s
        self.memory, self.first = memory, first
        self.timeouts = self.crashes = 0
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _end_all, self._idle)

    def check(self, requests: Sequence[Any]) -> list[Checked]:
        """The results of all requests (plain JSON values), in their order.

        RuntimeError when no process can be started at all.
        """
        lines = [json.dumps(request) for request in requests]
        with self._lock:
            found = self._check_distinct(deque(dict.fromkeys(lines)))
        return [found[line] for line in lines]

    def close(self) -> None:
        """End the processes; a later check starts new ones."""
        with self._lock:
            _end_all(self._idle)

    def _check_distinct(self, waiting: deque[str]) -> dict[str, Checked]:
        found: dict[str, Checked] = {}
        busy: list[Worker] = []
        try:
            while waiting or busy:
                while waiting and len(busy) < self.processes:
                    worker = self._alive() or self._started()
                    busy.append(worker)
                    self._send(worker, waiting.popleft(), self.time_limit_s)
                for worker in self._finished(busy, found):
                    busy.remove(worker)
        finally:  # an interrupt in between: what they are busy with belongs to nobody
            _end_all(busy)
        return found

    def _alive(self) -> Worker | None:
        """An idle process, those passed over that died meanwhile."""
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            _end(worker)
        return None

    def _started(self) -> Worker:
        """A new process that has imported its function and answered `first`."""
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment = kept | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "PYTHONHASHSEED": "0",  # sets are walked through in the same order everywhere
            "OMP_NUM_THREADS": "1",
        }
        module = "stabledrl.rewards.worker"
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, self.function, str(self.memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the job, which then closes the pool
        )
        worker = Worker(process, deadline=time.monotonic() + START_LIMIT_S)
        started = _read_line(worker) == READY
        if started and self.first is not None:
            self._send(worker, json.dumps(self.first), START_LIMIT_S)
            started = bool(_read_line(worker))
        if not started:
            _end(worker)
            raise RuntimeError(f"the process for {self.function} does not start")
        return worker

    def _send(self, worker: Worker, line: str, time_limit_s: float) -> None:
        worker.request, worker.deadline = line, time.monotonic() + time_limit_s
        worker.checks += 1
        assert worker.process.stdin is not None
        with contextlib.suppress(OSError):  # it died in between; reading finds its output ended
            worker.process.stdin.write(line.encode() + b"\n")
            worker.process.stdin.flush()

    def _finished(self, busy: Sequence[Worker], found: dict[str, Checked]) -> list[Worker]:
        """Wait until something happens; the workers that are no longer busy, results noted."""
        ready = _wait(busy)
        finished = []
        for worker in busy:
            state = _received(worker) if worker in ready else None
            if state is None and time.monotonic() < worker.deadline:
                continue
            finished.append(worker)
            assert worker.request is not None
            found[worker.request] = self._result(worker, state)
        return finished

    def _result(self, worker: Worker, line: bytes | None) -> Checked:
        """What a line says; without one the process is ended."""
        if line:
            content = json.loads(line)
            if worker.checks < CHECKS:
                self._idle.append(worker)
            else:
                _end(worker)
            return Checked(content.get("value"), content.get("error", ""))
        _end(worker)
        if line is None:
            self.timeouts += 1
            return Checked(failure=TIMEOUT)
        self.crashes += 1
        return Checked(failure=CRASH)


def _wait(workers: Sequence[Worker]) -> list[Worker]:
    """The workers with something to read, at the first event or the first deadline."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        nearest = min(worker.deadline for worker in workers) - time.monotonic()
        return [key.data for key, _ in selector.select(max(0.0, nearest))]


def _received(worker: Worker) -> bytes | None:
    """A whole line, None while it is not whole, b"" when the process has ended."""
    assert worker.process.stdout is not None
    piece = os.read(worker.process.stdout.fileno(), 1 << 16)
    if not piece:
        return b""
    worker.received += piece
    if not worker.received.endswith(b"\n"):
        return None
    line = bytes(worker.received)
    worker.received.clear()
    return line


def _read_line(worker: Worker) -> bytes | None:
    """The next line, waiting for it until the worker's deadline; as `_received` says."""
    while _wait([worker]):
        line = _received(worker)
        if line is not None:
            return line
    return None


def _end(worker: Worker) -> None:
    worker.process.kill()
    worker.process.wait()
    for stream in (worker.process.stdin, worker.process.stdout):
        assert stream is not None
        with contextlib.suppress(OSError):  # a request that it never read
            stream.close()


def _end_all(workers: list[Worker]) -> None:
    while workers:
        _end(workers.pop())
