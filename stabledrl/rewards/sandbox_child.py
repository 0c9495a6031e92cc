"""Shuts itself in, then becomes the program it is given. Run by `stabledrl.rewards.sandbox` only.

    python -I sandbox_child.py settings-as-JSON command…

In this order: a namespace of its own for users, network, processes and mounts (Linux), in which
everything is read-only but an empty directory in memory; resource limits; no further privileges;
then the command. Standard library only, nothing of this package: it runs without it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

NEW_MOUNTS, NEW_MESSAGES, NEW_USER = 0x00020000, 0x08000000, 0x10000000
NEW_PROCESSES, NEW_NETWORK = 0x20000000, 0x40000000
PRIVATE, RECURSIVE = 1 << 18, 1 << 14
NO_SUID_DEVICES = 2 | 4
MOUNT_SETATTR, HERE, ATTRIBUTES_RECURSIVE, READ_ONLY = 442, -100, 0x8000, 1
DIE_WITH_PARENT, NO_NEW_PRIVILEGES = 1, 38
INSIDE = 1000  # user inside; anybody but 0, whom the start of a program would leave all rights
NOT_ISOLATED = 97  # exit code


class Attributes(ctypes.Structure):
    """struct mount_attr of mount_setattr(2)."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user", ctypes.c_uint64),
    )


def called(function: Any, *arguments: Any) -> None:
    """A C function that returns 0, or an OSError."""
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def isolate(directory: str, size: int, hidden: list[str]) -> None:
    """Own namespaces; all mounts read-only, `directory` and the hidden ones empty. OSError if not.

    hidden: where processes, sockets of daemons (read-only mounts let them be used) and keys are.
    """
    library = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    spaces = NEW_USER | NEW_NETWORK | NEW_PROCESSES | NEW_MESSAGES | NEW_MOUNTS
    called(library.unshare, spaces)
    for name, text in (("setgroups", "deny"), ("uid_map", user), ("gid_map", group)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text if isinstance(text, str) else f"{INSIDE} {text} 1")
    called(library.mount, None, b"/", None, PRIVATE | RECURSIVE, None)
    attributes = Attributes(set=READ_ONLY)
    flags = ctypes.c_uint(ATTRIBUTES_RECURSIVE)
    size_of = ctypes.c_size_t(ctypes.sizeof(attributes))
    setattr_call = ctypes.c_long(MOUNT_SETATTR)
    called(library.syscall, setattr_call, HERE, b"/", flags, ctypes.byref(attributes), size_of)
    for place in hidden:
        nothing = NO_SUID_DEVICES | READ_ONLY
        called(library.mount, b"tmpfs", place.encode(), b"tmpfs", nothing, b"size=4k")
    options = f"size={size},mode=700".encode()
    called(library.mount, b"tmpfs", directory.encode(), b"tmpfs", NO_SUID_DEVICES, options)


def limit(limits: dict[str, int]) -> None:
    """Resource limits by name, soft and hard."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def control(option: int, value: int) -> None:
    """prctl(2), where there is one."""
    function = getattr(ctypes.CDLL(None), "prctl", None)
    if function is not None:
        function(option, ctypes.c_ulong(value), 0, 0, 0)


def main(settings: dict[str, Any], command: list[str]) -> int:
    """Run the command shut in; its exit code."""
    isolated = True
    try:
        isolate(settings["directory"], settings["size"], settings["hidden"])
    except (OSError, AttributeError):  # forbidden here, or no Linux
        isolated = False
        if settings["required"]:
            return NOT_ISOLATED
    child = os.fork()  # the first process of its namespace: what it starts ends with it
    if child == 0:
        control(DIE_WITH_PARENT, signal.SIGKILL)
        control(NO_NEW_PRIVILEGES, 1)
        os.chdir(settings["directory"])
        if not isolated:  # the number of processes is counted per namespace, else per user
            settings["limits"].pop("NPROC", None)
        limit(settings["limits"])
        os.execv(command[0], command)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status) & 0xFF
    return 1 if code == NOT_ISOLATED else code  # that one is ours


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
