"""Running a Python program that nobody has read, shut in as far as the system allows.

Everywhere (POSIX): limits on processor time, memory, files and output, an environment with nothing
in it and a wall-clock limit. Linux with user namespaces: no network, an empty directory in memory
to write to, nothing else in sight but Python and the system's libraries, read-only (no home, no
processes, no sockets of daemons), and no process left behind. What it is not: a virtual machine,
as the program shares the kernel.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stabledrl.rewards.sandbox_child import NOT_ISOLATED

CHILD = Path(__file__).with_name("sandbox_child.py")
WRITABLE = 64 << 20  # bytes in its directory
OUTPUT = 1 << 20  # bytes of standard output; also the largest file
PROCESSES, FILES = 32, 64
# what a program of the system needs, where it is there
SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
GRACE_S = 1.0  # wall-clock seconds beyond twice the processor time: start, a busy machine


@dataclass(frozen=True)
class Limits:
    """Of each process of a program. seconds: of processor time. memory: bytes of address space.

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
    with tempfile.TemporaryDirectory(prefix="stabledrl-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        (place / "inside").mkdir()
        (place / "root").mkdir()
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
    seconds = math.ceil(limits.seconds)  # whole ones; never less than was asked for
    settings = {
        "root": str(place / "root"),
        "visible": [*visible(), str(place / "program.py")],
        "input": str(place / "input"),
        "directory": str(place / "inside"),
        "size": WRITABLE,
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
    # not the link of a virtual environment, which would have to be in sight too
    python = [str(Path(sys.executable).resolve()), "-I", "-S"]
    return [*python, str(CHILD), json.dumps(settings), *python, "-B", str(place / "program.py")]


@lru_cache(maxsize=1)
def visible() -> tuple[str, ...]:
    """What a program sees besides itself: system, Python, standard library, each where it is."""
    interpreter = Path(sys.executable).resolve()
    of_base = {"platbase": sys.base_exec_prefix}  # and not of a virtual environment
    library = [sysconfig.get_path(name, vars=of_base) for name in ("stdlib", "platstdlib")]
    shared = sysconfig.get_config_var("LIBDIR")  # of libpython, and of what came with Python
    python = [str(interpreter), *library, *([shared] if shared else [])]
    found = [path for path in (*SYSTEM, *DEVICES, *python) if Path(path).exists()]
    found += [str(Path(path).resolve()) for path in found]  # where links lead
    return tuple(sorted(set(found), key=len))  # a folder before what is inside


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code, None after the time is over. Its group ends, and with it its namespaces."""
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
