"""Programs are run shut in: what they may, what they may not, and what they are paid."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from stabledrl.errors import UserError
from stabledrl.rewards.code import CodeTests, last_program
from stabledrl.rewards.sandbox import Limits, isolates, run_program
from stabledrl.tasks.jsonl import Jsonl
from stabledrl.types import Prompt

LIMITS = Limits(seconds=1, memory=256 << 20, isolation=False)
MARK = f"mark-{os.getpid()}"
STAYING = f"os.execv('/bin/sh', ['{MARK}', '-c', 'sleep 60; true'])"
shut_in = pytest.mark.skipif(not isolates(), reason="no user namespaces here")


def run(source, given="", limits=LIMITS):
    return run_program(source, given, limits)


def test_programs_read_and_write():
    assert run("print(int(input()) + 1)", "41") == run("print(42)")
    assert run("print(42)").output == "42\n"
    assert run("print(42)").code == 0
    assert run("import sys; sys.exit(3)").code == 3
    assert run("import sys; sys.exit(97)").code == 1  # the sandbox's own code for "not isolated"
    assert run("1/0").code == 1
    assert run("print(undefined").code == 1
    assert run("import os; print(sorted(os.environ))").output == "['LANG', 'PATH']\n"


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "9**9**9",
        "x = bytearray(1 << 30)",
        "x = []\nwhile True: x.append('x' * 1000000)",
        "def f(): f()\nf()",
        "while True: print('x' * 1000)",
        "open('big', 'wb').write(bytes(1 << 22))",
        "import os, signal, time\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    ],
)
def test_what_takes_too_much_is_stopped(source):
    start = time.monotonic()
    outcome = run(source)
    assert outcome.code != 0
    assert len(outcome.output) <= 1 << 20
    assert time.monotonic() - start < 10


@shut_in
@pytest.mark.parametrize(
    "source",
    [
        "import socket; socket.create_connection(('127.0.0.1', PORT), 1)",
        "open('MARK', 'w').write('x')",
        "import os; os.remove('HERE')",
        "import os; os.kill(OUR_ID, 0)",
        "import os; open('/proc/OUR_ID/environ')",
        "import os; os.listdir('/run')",
        "import ctypes; assert ctypes.CDLL(None).mount(None, b'/', None, 32 | 4096, None) == 0",
        "import socket; socket.socket(socket.AF_UNIX).connect('SOCKET')",
        "open('HERE').read()",
        "open('/etc/passwd')",
        "open('/usr/mark', 'w')",
        "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
        "for number in range(5000): open(str(number), 'w').close()",
    ],
    ids=[
        "network",
        "write",
        "remove",
        "processes",
        "environment",
        "daemons",
        "remount",
        "socket",
        "read",
        "accounts",
        "system",
        "namespaces",
        "many files",
    ],
)
def test_what_lies_outside_is_out_of_reach(source, tmp_path):
    import socket

    here = tmp_path / "here"
    here.write_text("kept")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as local,
    ):
        local.bind(str(tmp_path / "socket"))
        local.listen()
        values = {
            "PORT": server.getsockname()[1],
            "MARK": tmp_path / "mark",
            "HERE": here,
            "SOCKET": tmp_path / "socket",
            "OUR_ID": os.getpid(),
        }
        for name, value in values.items():
            source = source.replace(name, str(value))
        assert run(source, limits=Limits(1)).code == 1
    assert here.read_text() == "kept"
    assert not (tmp_path / "mark").exists()


@shut_in
@pytest.mark.parametrize(
    ("last_words", "code"),
    [
        ("print('end')", 0),
        (f"print('end', flush=True); {STAYING}", None),
        ("import os; print('end', flush=True); os.kill(os.getppid(), 9); os._exit(5)", 5),
    ],
    ids=["ends", "stays", "kills its parent"],
)
def test_nothing_runs_on_and_nothing_is_left(last_words, code, tmp_path, monkeypatch):
    """Not even what left its process group and asked not to die with its parent."""
    source = (
        "import ctypes, os, time\nopen('note', 'w').write('x')\nprint(os.listdir())\n"
        "os.setsid()\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"
        f"if os.fork() == 0:\n os.setsid()\n {STAYING}\n"
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outcome = run(source + last_words, limits=Limits(1))
    assert (outcome.output, outcome.code) == ("['note']\nend\n", code)
    time.sleep(0.1)
    assert not running()
    assert not list(tmp_path.iterdir())


@shut_in
def test_a_program_ends_with_its_job(tmp_path):
    """However that ends: killed by a scheduler, out of memory."""
    program = f"import os; os.setsid(); {STAYING}"
    job = (
        "from stabledrl.rewards.sandbox import Limits, run_program\n"
        f"run_program({program!r}, '', Limits(30))"
    )
    temporary = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", job], env=temporary) as process:
        deadline = time.monotonic() + 60
        while not (found := running()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found
        process.kill()
    time.sleep(0.3)
    assert not running()


def test_a_program_that_still_writes_costs_no_error():
    """Without namespaces nothing ends what it has left behind."""
    source = (
        "import os, time\nif os.fork() == 0:\n os.setsid()\n"
        " for number in range(300): open(str(number), 'w').close(); time.sleep(0.003)\n"
    )
    assert run(source).code == 0


@shut_in
def test_all_of_the_standard_library_can_be_had():
    """What is built on C libraries is the same as outside."""
    modules = "ssl, sqlite3, ctypes, decimal, hashlib, lzma, zlib, asyncio, multiprocessing"
    outcome = run(f"import {modules}\nprint('all')", limits=Limits(4))
    assert outcome.output == "all\n"


@shut_in
@pytest.mark.parametrize(
    "source",
    [
        "print(int(open('/dev/stdin').read()) + 1)",
        "import sys; print(int(sys.stdin.read()) + 1)",
        "import multiprocessing as m\nlock = m.Lock()\nprint(42)",
    ],
)
def test_programs_find_what_they_find_elsewhere(source):
    assert run(source, "41", Limits(2)) == run("print(42)")


def running():
    """Command lines of the programs of these tests that stayed."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_bytes().decode(errors="replace"))
    return [line for line in found if line.startswith(MARK)]


@shut_in
def test_a_fork_bomb_ends():
    start = time.monotonic()
    assert run("import os\nwhile True: os.fork()", limits=Limits(1)).code != 0
    assert time.monotonic() - start < 10


PLUS = "```python\nprint(int(input()) + 1)\n```"
TESTS = [{"input": "1\n", "output": "2"}, {"input": "5", "output": "6 \n\n"}]


def graded(completion, tests, **settings):
    grader = CodeTests(require_isolation=False, time_limit_s=1, **settings)
    prompt = Prompt("", "t", "k", {"answer": tests})
    found = grader.verify_all([prompt, prompt], [completion, completion])
    assert found == [grader(prompt, completion)] * 2
    return found[0]


def test_verdicts():
    assert graded(PLUS, TESTS).solved
    assert graded(PLUS, TESTS).total == 1
    half = [*TESTS, {"input": "1", "output": "3"}, {"input": "x", "output": ""}]
    assert graded(PLUS, half).total == 0
    assert graded(PLUS, half, reward="fraction").total == 0.5
    assert graded("def f(x): return x + 1", ["assert f(1) == 2\nassert f(-1) == 0"]).solved
    assert not graded("def f(x): return x + 1", ["assert f(1) == 3"]).solved
    assert not graded("import sys; sys.exit(0)", ["assert False"]).solved
    assert not graded("import os; os._exit(0)", ["assert False"]).solved
    for text, reason in [
        ("", "no program"),
        ("```python\nx", "no program"),
        ("x" * 70000, "a prog"),
    ]:
        verdict = graded(text, TESTS)
        assert (verdict.total, verdict.reason[: len(reason)]) == (0, reason)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("x = 1", "x = 1"),
        ("so\n```python\nx = 1\n```\ndone", "x = 1\n"),
        ("```\nx = 1\n```", "\nx = 1\n"),
        ("```py\na\n```\n```py\nb\n```", "b\n"),
        ("```py\na\n```\n```py\nb", "a\n"),
        ("<answer>```py\na\n```</answer> ```py\nb\n```", "a\n"),
        ("```py\na", ""),
    ],
)
def test_which_program_counts(text, program):
    assert last_program(text) == program


def test_nothing_is_run_unless_it_is_asked_for(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "a", "answer": ["assert True"]}\n')
    grader = CodeTests(require_isolation=False)
    with pytest.raises(UserError, match=r"set task\.allow_execution=true"):
        Jsonl(grader, str(path))
    task = Jsonl(grader, str(path), allow_execution=True)
    assert task.verify(task.prompts("train", 0, 0, 1)[0], "x = 1").total == 1


def test_a_system_that_cannot_shut_in_is_told(monkeypatch):
    monkeypatch.setattr("stabledrl.rewards.code.isolates", lambda: False)
    with pytest.raises(UserError, match=r"verifier\.require_isolation=false runs"):
        CodeTests()
