"""Functions that worker processes run in tests."""

import os
import sys
import time


def misbehave(request):
    """What the request says: hang, die, raise, print, eat memory, or square a number."""
    match request:
        case "hang":
            time.sleep(600)
        case "prepare":
            time.sleep(1)
            return "prepared"
        case "compute":
            return 9 ** (9**9) > 0  # C code that no signal interrupts
        case "die":
            os._exit(3)
        case "raise":
            raise KeyError("no")
        case "recurse":
            return misbehave_deeper(1)
        case "print":
            print("x" * 1_000_000)
            os.write(1, b"noise\n")
            sys.stdout.flush()
            return "printed"
        case "eat":
            return len(bytearray(8 << 30))
        case "environment":
            return sorted(os.environ)
        case "process":
            return os.getpid()
        case _:
            return request**2


def misbehave_deeper(depth):
    """Endless recursion."""
    return misbehave_deeper(depth + 1)
