"""A job in a process of its own, from workers of any kind."""

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from stabledrl import isolation
from stabledrl.isolation import apart

FORK = "fork" in multiprocessing.get_all_start_methods()
pytestmark = [
    pytest.mark.skipif(not FORK, reason="there is no fork here"),
    # other tests may have left threads behind; the job here uses none
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


def lasting_job() -> float:
    """Lasts until its process has been looked after at least once; its process."""
    time.sleep(0.05)
    return float(os.getpid())


def apart_and_here(_: int = 0) -> tuple[float | None, int]:
    """Processes of the job and of who asked for it."""
    return apart(lasting_job), os.getpid()


def test_a_job_has_a_process_of_its_own():
    job, here = apart_and_here()
    assert here == os.getpid()
    assert job not in (None, here)


def test_a_daemonic_worker_runs_it_itself():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        job, worker = pool.apply_async(apart_and_here).get(timeout=20)
    assert job == worker != os.getpid()


def test_a_forked_worker_knows_its_own_launcher(monkeypatch):
    monkeypatch.setattr(isolation, "WATCH", 0.01)  # several looks while the job lasts
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        job, worker = pool.submit(apart_and_here).result(timeout=20)
    assert job not in (None, worker)
    assert worker != os.getpid()


def test_a_second_interrupt_ends_the_job_at_once(monkeypatch):
    ended = []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    process = multiprocessing.get_context("fork").Process
    terminate = process.terminate
    monkeypatch.setattr(isolation, "_wait", interrupted)
    monkeypatch.setattr(process, "join", interrupted)
    monkeypatch.setattr(process, "terminate", lambda self: (ended.append(self), terminate(self)))
    with pytest.raises(KeyboardInterrupt):
        apart(lambda: time.sleep(60))
    monkeypatch.undo()
    [job] = ended
    job.join(10)
    assert job.exitcode == -15  # SIGTERM
