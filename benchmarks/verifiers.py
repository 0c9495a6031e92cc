"""How long verifiers take on random strings, and whether their memory grows.

    python benchmarks/verifiers.py --strings 10000

Prints a line per verifier: milliseconds per string at the median, the 99th percentile and the
longest, verdicts that were missing, and resident memory (MiB) of this process with all processes it
started, after the first tenth and at the end. Wall time, so that an idle machine is needed.
"""

from __future__ import annotations

import argparse
import random
import string
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from stabledrl.rewards.mathematics import MathAnswer
from stabledrl.tasks.arithmetic import Arithmetic
from stabledrl.tasks.countdown import Countdown
from stabledrl.tasks.reasoning_gym import ReasoningGym
from stabledrl.tasks.sudoku import Sudoku
from stabledrl.types import Prompt, RewardOutput, Task

PAGE = 4096
MATHEMATICS = [
    *(rf"\{name}" for name in ("frac", "sqrt", "pi", "cdot", "pm")),
    *"{}()[]^_+-*/=!,.%$xyn012",
    *("17", "3.5"),
]
CELLS = [*"01234", " ", "\n", ","]
LETTERS = [*string.printable, "é", "数", "\u202e"]
Verifier = Callable[[Prompt, str], RewardOutput]


def strings(count: int, seed: int) -> Iterator[str]:
    """Random characters, mathematics, digits; a third of each in tags, a third boxed."""
    generator = random.Random(seed)
    for index in range(count):
        words = (LETTERS, MATHEMATICS, CELLS)[index % 3]
        text = "".join(generator.choices(words, k=int(2 ** generator.uniform(0, 9))))
        before, after = generator.choice([("", ""), ("<answer>", "</answer>"), (r"\boxed{", "}")])
        yield f"{before}{text}{after}"


def verifiers() -> dict[str, tuple[Prompt, Verifier]]:
    """Each with a prompt of its task; that of task=code is not here, it starts an interpreter."""
    gold = Prompt("", "math", "", {"answer": r"\frac{3}{2}\sqrt{2}"})
    long_sums = ReasoningGym("chain_sum", {"min_digits": 8, "max_digits": 9})
    tasks: list[Task] = [
        Sudoku(),
        Countdown(),
        Arithmetic(digits_minimum=8, digits_maximum=9),
        long_sums,
    ]
    generated = {task.name: (task.prompts("train", 0, 0, 1)[0], task.verify) for task in tasks}
    return {**generated, "math": (gold, MathAnswer())}


def memory() -> float:
    """Resident memory of this process and its children, MiB (Linux)."""
    here = Path("/proc/self/task")
    children = [word for task in here.iterdir() for word in (task / "children").read_text().split()]
    sizes = [
        Path(f"/proc/{process}/statm").read_text().split()[1] for process in ("self", *children)
    ]
    return sum(map(int, sizes)) * PAGE / 2**20


def measure(name: str, prompt: Prompt, verify: Verifier, count: int) -> str:
    """One line of the table."""
    seconds, missing, early = [], 0, 0.0
    verify(prompt, "1")  # processes start
    for index, text in enumerate(strings(count, seed=0)):
        start = time.perf_counter()
        missing += verify(prompt, text).total is None
        seconds.append(time.perf_counter() - start)
        if index == count // 10:
            early = memory()
    seconds.sort()
    median, high, longest = (seconds[int(share * (count - 1))] * 1e3 for share in (0.5, 0.99, 1))
    return (
        f"| {name} | {median:.2f} | {high:.2f} | {longest:.0f} | {missing} "
        f"| {early:.0f} | {memory():.0f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strings", type=int, default=10_000)
    count = parser.parse_args().strings
    print("| verifier | median ms | 99 % ms | longest ms | no verdict | MiB early | MiB at end |")
    print("|---|---|---|---|---|---|---|")
    for name, (prompt, verify) in verifiers().items():
        print(measure(name, prompt, verify, count), flush=True)


if __name__ == "__main__":
    main()
