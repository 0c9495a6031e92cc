"""A job in a process of its own: what kills the job kills nothing else.

The jobs of a multirun share their launcher's processes. A job that runs out of memory would take
that process along, and with it every job that is running or still waits.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from stabledrl.errors import UserError

Job = Callable[[], float | None]
launcher = os.getppid()  # the process that started this one: read early, while it is there

INTERRUPTED = 130  # exit code after Ctrl-C
GRACE = 10.0  # seconds in which an interrupted job may end by itself
WATCH = 0.5  # seconds between two looks at whether somebody still waits for the result


def apart(job: Job) -> float | None:
    """What the job returns, computed in a forked process.

    UserError if that process died without a result, KeyboardInterrupt if it was interrupted. Where
    there is no fork (Windows), or this process may have no children (a daemonic worker, as those of
    multiprocessing.Pool are), the job runs in this process. Call it before torch is imported: its
    threads do not live through a fork. The job ends when nobody waits for it any more.
    """
    forks = "fork" in multiprocessing.get_all_start_methods()
    if not forks or multiprocessing.current_process().daemon:
        return job()
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(job, writer, os.getpid()))
    sys.stdout.flush()  # else both processes write what is in the buffer
    process.start()
    writer.close()
    try:
        _wait(process)
    except KeyboardInterrupt:
        try:
            process.join(GRACE)
        finally:  # whoever presses Ctrl-C again does not want to wait
            process.terminate()
        raise
    with contextlib.suppress(EOFError):
        if reader.poll():  # at once: the process is gone, its message is smaller than the buffer
            result: float | None = json.loads(reader.recv_bytes())
            return result
    assert process.exitcode is not None
    if process.exitcode == INTERRUPTED:
        raise KeyboardInterrupt
    raise UserError(cause_of_death(process.exitcode))


def _remember_launcher() -> None:
    """A forked worker has this module from its parent, whose launcher is another."""
    global launcher
    launcher = os.getppid()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_remember_launcher)


def is_interrupt(error: BaseException) -> bool:
    """Whether somebody pressed Ctrl-C: as such, or the way Lightning ends on it."""
    ended = isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt)
    return ended or isinstance(error, KeyboardInterrupt)


def _send_result(job: Job, writer: Connection, parent: int) -> None:
    threading.Thread(target=end_without, args=(parent,), daemon=True).start()
    try:
        writer.send_bytes(json.dumps(job()).encode())
    except BaseException as error:
        if is_interrupt(error):
            sys.exit(INTERRUPTED)
        raise


def end_without(parent: int) -> None:
    """End this process once its parent is gone: a killed sweep must not go on behind one's back."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)


def _wait(process: BaseProcess) -> None:
    """Until the process has ended; a launcher's worker ends itself when the command is gone.

    Else an orphaned worker would go on with the jobs in its queue, beside the same sweep restarted.
    """
    in_worker = multiprocessing.current_process().name != "MainProcess"
    while process.is_alive():
        if in_worker and os.getppid() != launcher:
            os._exit(1)  # the job sees it and follows
        process.join(WATCH)


def cause_of_death(exit_code: int) -> str:
    """Why a process that left no result has ended, in words."""
    if exit_code >= 0:
        return f"the job's process ended with exit code {exit_code} and left no result"
    name = signal.Signals(-exit_code).name
    hint = ", which is how the system ends what takes too much memory" if name == "SIGKILL" else ""
    return f"the job's process was killed by {name}{hint}"
