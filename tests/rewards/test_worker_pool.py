"""The pool survives whatever its functions do, and its size changes nothing."""

import os
import threading
import time

import pytest

from stabledrl.rewards.worker_pool import Checked, WorkerPool

FUNCTION = "tests.rewards.checks:misbehave"


@pytest.fixture
def pool():
    pool = WorkerPool(FUNCTION, processes=2, time_limit_s=0.5)
    yield pool
    pool.close()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_keep_their_order_whatever_happens_between_them(pool):
    requests = [3, "hang", "die", 4, "raise", "print", "recurse", "compute", "eat", 5, 3]
    assert pool.check(requests) == [
        Checked(9),
        Checked(failure="timeout"),
        Checked(failure="crash"),
        Checked(16),
        Checked(failure="KeyError"),
        Checked("printed"),
        Checked(failure="RecursionError"),
        Checked(failure="timeout"),
        Checked(failure="MemoryError"),
        Checked(25),
        Checked(9),
    ]
    assert (pool.timeouts, pool.crashes) == (2, 1)


def test_the_number_of_processes_changes_nothing():
    requests = [*range(300), "raise", *range(300)]
    results = []
    for processes in (1, 3):
        pool = WorkerPool(FUNCTION, processes, time_limit_s=10)
        results.append(pool.check(requests))
        pool.close()
    assert results[0] == results[1]
    assert [item.value for item in results[0][:300]] == [number**2 for number in range(300)]


def test_what_takes_long_once_may_come_first():
    with_preparation = WorkerPool(FUNCTION, processes=2, time_limit_s=0.5, first="prepare")
    assert with_preparation.check([3, 4]) == [Checked(9), Checked(16)]
    assert with_preparation.check(["prepare"]) == [Checked(failure="timeout")]
    with_preparation.first = "die"
    with pytest.raises(RuntimeError, match="does not start"):
        with_preparation.check([5, 6])
    with_preparation.close()


def test_a_flood_of_one_text_costs_one_check(pool):
    start = time.monotonic()
    assert set(pool.check(["hang"] * 1000)) == {Checked(failure="timeout")}
    assert time.monotonic() - start < 20
    assert pool.timeouts == 1
    assert pool.check([]) == []


def test_it_works_off_the_main_thread(pool):
    found = []
    thread = threading.Thread(target=lambda: found.extend(pool.check([6, "hang", 7])))
    thread.start()
    thread.join()
    assert [item.value for item in found] == [36, None, 49]


def test_processes_end_when_the_pool_is_closed_or_forgotten(pool):
    (first,) = pool.check(["process"])
    pool.close()
    assert not alive(first.value)
    (second,) = pool.check(["process"])  # a closed pool starts again
    assert alive(second.value)
    forgotten = WorkerPool(FUNCTION, 1, 5.0)
    (third,) = forgotten.check(["process"])
    del forgotten
    assert not alive(third.value)


def test_a_process_that_dies_between_two_checks_is_replaced(pool):
    (first,) = pool.check(["process"])
    os.kill(first.value, 9)
    time.sleep(0.05)
    assert pool.check([2]) == [Checked(4)]


def test_a_process_is_replaced_after_many_checks(monkeypatch):
    monkeypatch.setattr("stabledrl.rewards.worker_pool.CHECKS", 3)
    single = WorkerPool(FUNCTION, 1, 5.0)
    seen = [single.check(["process"])[0].value for _ in range(6)]
    assert len(set(seen[:3])) == len(set(seen[3:])) == 1
    assert not alive(seen[0])
    assert not alive(seen[3])


def test_credentials_stay_out_of_the_processes(pool, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "secret")
    (seen,) = pool.check(["environment"])
    assert "PATH" in seen.value
    assert not {"A_TOKEN", "HOME"} & set(seen.value)


def test_a_function_that_is_not_there_is_told():
    with pytest.raises(RuntimeError, match=r"process for nowhere:nothing does not start"):
        WorkerPool("nowhere:nothing", 1, 1.0).check([1])
    with pytest.raises(ValueError, match="at least one process"):
        WorkerPool(FUNCTION, 0, 1.0)
