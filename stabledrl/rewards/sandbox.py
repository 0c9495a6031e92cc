"""Running a Python program that nobody has read, shut in as far as the system allows.

Linux with user namespaces: no network, every file read-only, an empty directory in memory to write
to; no other processes, no home and no sockets of daemons in sight. Everywhere (POSIX): limits on
processor time, memory, files and output, an environment with nothing in it, a wall-clock limit, and
no process left behind. What it is not: a virtual machine. The program shares the kernel and may
read what this user may read, the home and /proc excepted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stabledrl.rewards.sandbox_child import NOT_ISOLATED

CHILD = Path(__file__).with_name("sandbox_child.py")
WRITABLE = 64 << 20  # bytes in its directory
OUTPUT = 1 << 20  # bytes of standard output; also the largest file
PROCESSES, FILES = 32, 64
GRACE_S = 1.0  # wall-clock seconds beyond twice the processor time: start, a busy machine


@dataclass(frozen=True)
class Limits:
    """Of one program. seconds: of processor time. memory: bytes of address space.

    isolation: whether it must be shut into namespaces (else it is so where that works).
    """

    seconds: float = 4.0
    memory: int = 1 << 30
    isolation: bool = True


@dataclass(frozen=True)
class Outcome:
    """How a program ended. code: its exit code, None for one that was stopped for its time."""

    output: str
    code: int | None


class NoIsolation(RuntimeError):
    """The system does not let programs be shut in."""


def run_program(source: str, standard_input: str, limits: Limits) -> Outcome:
    """Run Python source with the standard library only; its standard output and how it ended.

    Output that is no UTF-8 comes with replacement characters; what is over a MiB is cut off, as the
    program is. NoIsolation where `limits.isolation` is asked for and cannot be had.
    """
    with tempfile.TemporaryDirectory(prefix="stabledrl-") as folder:
        place = Path(folder)
        (place / "inside").mkdir()
        (place / "program.py").write_text(source, encoding="utf-8", errors="replace")
        (place / "input").write_text(standard_input, encoding="utf-8", errors="replace")
        with (place / "input").open("rb") as given, (place / "output").open("w+b") as output:
            process = subprocess.Popen(
                _command(place, limits),
                stdin=given,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                cwd=place / "inside",
                start_new_session=True,
            )
            code = _wait(process, 2 * limits.seconds + GRACE_S)
            if code == NOT_ISOLATED and limits.isolation:
                raise NoIsolation
            output.seek(0)
            return Outcome(output.read(OUTPUT).decode(errors="replace"), code)


def _command(place: Path, limits: Limits) -> list[str]:
    seconds = max(1, round(limits.seconds))
    settings = {
        "directory": str(place / "inside"),
        "size": WRITABLE,
        "hidden": _hidden(place),
        "required": limits.isolation,
        "limits": {
            "CPU": seconds,
            "AS": limits.memory,
            "FSIZE": OUTPUT,
            "NOFILE": FILES,
            "NPROC": PROCESSES,
            "CORE": 0,
        },
    }
    python = [sys.executable, "-I", "-S"]
    return [*python, str(CHILD), json.dumps(settings), *python, "-B", str(place / "program.py")]


def _hidden(place: Path) -> list[str]:
    """Folders that a program must not see, as far as neither Python nor its own place is inside."""
    needed = [Path(sys.executable).resolve(), Path(sys.prefix), Path(sys.base_prefix), place]
    folders = [Path("/proc"), Path("/run"), Path.home().resolve()]
    return [
        str(folder)
        for folder in folders
        if folder.is_dir() and not any(path.is_relative_to(folder) for path in needed)
    ]


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code, None after the time is over; then, and in any case, nothing runs on."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@lru_cache(maxsize=1)
def isolates() -> bool:
    """Whether this system lets programs be shut in; found out by doing it once."""
    try:
        return run_program("print('in')", "", Limits()).output == "in\n"
    except NoIsolation:
        return False
