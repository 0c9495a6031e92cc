"""Shuts itself in, then starts the program it is given. Run by `stabledrl.rewards.sandbox` only.

    python -I sandbox_child.py settings-as-JSON command…

In this order: namespaces of its own for users, network, processes and mounts, whose root is an
empty one that shows a few read-only paths and a directory in memory (Linux); a first process of
them, with which all others end; resource limits; no further privileges; then the command. Standard
library only, nothing of this package: it runs without it.
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
BIND, PRIVATE, RECURSIVE, DETACH = 1 << 12, 1 << 18, 1 << 14, 2
NO_SUID_DEVICES = 2 | 4
MOUNT_SETATTR, HERE, ATTRIBUTES_RECURSIVE, READ_ONLY = 442, -100, 0x8000, 1
DIE_WITH_PARENT, DUMPABLE, NO_NEW_PRIVILEGES = 1, 4, 38
# number of keyctl(2), which no C library has
KEYS, JOIN_SESSION = {"x86_64": 250, "aarch64": 219}, 1
FILES = 4096  # in the writable directory, folders included
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


def isolate(root: str, visible: list[str], given: str, directory: str, size: int) -> None:
    """Own namespaces with nothing but `visible` (read-only) and `directory`. OSError if not.

    root: an empty folder, the place where the new root is built. given: the file of standard
    input. size: bytes of `directory`, which is shared memory too.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if number := KEYS.get(os.uname().machine):  # a session of its own, without our user's keys
        library.syscall(ctypes.c_long(number), ctypes.c_long(JOIN_SESSION), None)
    enter_namespaces(library)
    called(library.mount, None, b"/", None, PRIVATE | RECURSIVE, None)
    called(library.mount, b"tmpfs", root.encode(), b"tmpfs", NO_SUID_DEVICES, b"size=1m,mode=755")
    for path in visible:
        show(library, path, root + path)
    show(library, given, f"{root}/dev/stdin")  # elsewhere a link into /proc
    os.symlink(directory, f"{root}/dev/shm")
    os.makedirs(root + directory)
    attributes = Attributes(set=READ_ONLY)
    flags = ctypes.c_uint(ATTRIBUTES_RECURSIVE)
    size_of = ctypes.c_size_t(ctypes.sizeof(attributes))
    setattr_call = ctypes.c_long(MOUNT_SETATTR)
    pointer = ctypes.byref(attributes)
    called(library.syscall, setattr_call, HERE, root.encode(), flags, pointer, size_of)
    options = f"size={size},nr_inodes={FILES},mode=700".encode()
    place = (root + directory).encode()
    called(library.mount, b"tmpfs", place, b"tmpfs", NO_SUID_DEVICES, options)
    os.chdir(root)
    called(library.pivot_root, b".", b".")  # the old root now lies over the new one
    called(library.umount2, b".", DETACH)
    os.chdir("/")


def enter_namespaces(library: ctypes.CDLL) -> None:
    """For users, network, mounts and messages at once, for processes from the next child on."""
    user, group = os.getuid(), os.getgid()
    spaces = NEW_USER | NEW_NETWORK | NEW_PROCESSES | NEW_MESSAGES | NEW_MOUNTS
    called(library.unshare, spaces)
    for name, text in (("setgroups", "deny"), ("uid_map", user), ("gid_map", group)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text if isinstance(text, str) else f"{INSIDE} {text} 1")
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")  # inside ours: in one of its own a program could mount control files


def show(library: ctypes.CDLL, path: str, target: str) -> None:
    """Let a path appear at `target`, unless one before it has brought it along."""
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    called(library.mount, path.encode(), target.encode(), None, BIND | RECURSIVE, None)


def limit(limits: dict[str, int]) -> None:
    """Resource limits by name, soft and hard."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def control(option: int, value: int) -> None:
    """prctl(2), where there is one."""
    function = getattr(ctypes.CDLL(None), "prctl", None)
    if function is not None:
        function(option, ctypes.c_ulong(value), 0, 0, 0)


def first_process(settings: dict[str, Any], command: list[str], isolated: bool) -> int:
    """Start the command and wait for it; its exit code. Whatever runs here ends when we do.

    In a namespace that is for certain: we end with our parent, and no program can change that, as
    it may neither signal nor trace the first process of its namespace.
    """
    control(DIE_WITH_PARENT, signal.SIGKILL)
    control(DUMPABLE, 0)
    child = os.fork()
    if child == 0:
        control(DIE_WITH_PARENT, signal.SIGKILL)
        control(NO_NEW_PRIVILEGES, 1)
        os.chdir(settings["directory"])
        if not isolated:  # the number of processes is counted per namespace, else per user
            settings["limits"].pop("NPROC", None)
        limit(settings["limits"])
        os.execv(command[0], command)
    while True:  # orphans of the program come to us
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status) & 0xFF


def main(settings: dict[str, Any], command: list[str]) -> int:
    """Run the command shut in; its exit code."""
    job, isolated = os.getppid(), True
    try:
        keys = ("root", "visible", "input", "directory", "size")
        isolate(*(settings[key] for key in keys))
    except (OSError, AttributeError):  # forbidden here, or no Linux
        isolated = False
        if settings["required"]:
            return NOT_ISOLATED
    control(DIE_WITH_PARENT, signal.SIGKILL)  # the job may be killed; new namespaces forget this
    if os.getppid() != job:
        return 1
    first = os.fork()
    if first == 0:
        os._exit(first_process(settings, command, isolated))
    _, status = os.waitpid(first, 0)
    code = os.waitstatus_to_exitcode(status) & 0xFF
    return 1 if code == NOT_ISOLATED else code  # that one is ours


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
