"""The process that answers checks for a `WorkerPool`: one JSON value a line in, one out.

    python -P -m stabledrl.rewards.worker package.module:function memory_bytes

Run by the pool only. It imports nothing but the standard library before the function's module, and
ends when its input ends, so that it never outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

READY = b"ready\n"


def limit_memory(size: int) -> None:
    """Bound the address space of this process in bytes, and write no core files (POSIX only)."""
    try:
        import resource
    except ImportError:  # Windows: the wall-clock limit of the pool is all there is
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or size < hard:
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def private_output() -> BinaryIO:
    """Where answers go; whatever else is printed, also by C code, goes nowhere."""
    output = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return output


def answer(check: Callable[[Any], Any], line: bytes) -> bytes:
    """One check: {"value": …}, or {"error": …} when the function raised."""
    try:
        found = {"value": check(json.loads(line))}
    except (Exception, RecursionError, MemoryError) as error:
        found = {"error": type(error).__name__}
    return json.dumps(found).encode() + b"\n"


def main(target: str, memory: str) -> None:
    """Serve the function `package.module:function` until standard input ends."""
    output = private_output()
    limit_memory(int(memory))
    module, _, name = target.partition(":")
    check = getattr(import_module(module), name)
    output.write(READY)
    output.flush()
    for line in sys.stdin.buffer:
        output.write(answer(check, line))
        output.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
