"""Random strings through every verifier: a verdict and no crash; benchmarks/verifiers.py times."""

import pytest

pytest.importorskip("math_verify")
pytest.importorskip("reasoning_gym")

from benchmarks.verifiers import measure, strings, verifiers

COUNT = 300


@pytest.fixture(scope="module")
def every():
    found = verifiers()
    yield found
    for _, verify in found.values():
        owner = getattr(verify, "__self__", verify)
        getattr(owner, "close", lambda: None)()


@pytest.mark.parametrize("name", ["sudoku", "countdown", "arithmetic", "reasoning_gym", "math"])
def test_random_strings_are_wrong_and_nothing_else(every, name):
    prompt, verify = every[name]
    for text in strings(COUNT, seed=1):
        verdict = verify(prompt, text)
        assert not verdict.solved
        assert verdict.total is None or 0 <= verdict.total < 1
        assert verdict.reason or verdict.total


def test_all_are_here(every):
    assert set(every) == {"sudoku", "countdown", "arithmetic", "reasoning_gym", "math"}


def test_the_benchmark_prints_a_row(every):
    row = measure("sudoku", *every["sudoku"], 20)
    assert row.startswith("| sudoku | ")
    assert row.count("|") == 8


def test_strings_are_the_same_every_time():
    assert list(strings(50, 3)) == list(strings(50, 3)) != list(strings(50, 4))
    assert max(map(len, strings(3000, 0))) > 512
