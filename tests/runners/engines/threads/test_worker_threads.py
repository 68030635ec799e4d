"""Threads sleep between rounds, work in parallel in them, and end when the engine is closed."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from steppe.errors import EnvironmentFault
from steppe.runners._base import ChunkLimits
from steppe.runners.engines.threads import worker_threads as worker_threads_module
from steppe.runners.engines.threads.thread_worker import LearnedBatch
from steppe.runners.engines.threads.work_queue import WorkQueue
from steppe.runners.engines.threads.worker_threads import WorkerThreads
from steppe.runners.episode_window import EpisodeWindow

DEADLINE = 20.0


class Fake:
    """A fake worker whose batches come from `act`."""

    def __init__(self, index, act):
        self.index, self.act, self.closed, self.threads = index, act, 0, set()

    def work(self, timestep):
        self.threads.add(threading.current_thread())
        self.act(timestep)
        return LearnedBatch(1, [], [], 1, 0, [np.zeros(1)], [1], True)

    def close(self):
        self.closed += 1


def crew_of(*acts):
    return WorkerThreads([Fake(index, act) for index, act in enumerate(acts)])


def nothing(timestep):
    pass


def ledger_of(tickets):
    return WorkQueue(tickets, 0, ChunkLimits(), EpisodeWindow())


def steppe_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("steppe-worker")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert steppe_threads() == []


def test_workers_work_side_by_side():
    meeting = threading.Barrier(3, timeout=DEADLINE)
    worker_threads = crew_of(*[lambda timestep: meeting.wait()] * 3)
    queue = ledger_of(3)
    worker_threads.run(queue)
    worker_threads.close()
    assert queue.error is None
    assert queue.updates == 3


def test_the_same_threads_work_in_every_round():
    worker_threads = crew_of(nothing, nothing)
    for _ in range(20):
        queue = ledger_of(50)
        worker_threads.run(queue)
        assert queue.updates == 50
    assert worker_threads.alive == 2
    worker_threads.close()
    assert all(len(worker.threads) <= 1 for worker in worker_threads.workers)


def test_a_round_ends_only_when_every_thread_is_quiet():
    slow, others = threading.Event(), threading.Event()
    done = []

    def wait(timestep):
        others.set()
        assert slow.wait(DEADLINE)
        done.append(True)

    def let_go(timestep):
        assert others.wait(DEADLINE)
        slow.set()

    worker_threads = crew_of(wait, let_go)
    worker_threads.run(ledger_of(2))
    assert done
    worker_threads.close()


@pytest.mark.parametrize("error", [EnvironmentFault("broke"), ValueError("a mistake"), SystemExit(0)])
def test_a_workers_error_ends_the_round_but_no_thread(error):
    def fail(timestep):
        raise error

    worker_threads = crew_of(fail, fail)
    queue = ledger_of(100)
    worker_threads.run(queue)
    assert type(queue.error) is type(error)
    assert queue.updates == 0
    assert worker_threads.alive == 2
    worker_threads.close()


def test_an_environment_fault_names_its_worker():
    def fail(timestep):
        raise EnvironmentFault("the wheel came off")

    began, broke = threading.Event(), threading.Event()
    worker_threads = crew_of(
        lambda timestep: (began.set(), broke.wait(DEADLINE)),
        lambda timestep: (began.wait(DEADLINE), broke.set(), fail(timestep)),
    )
    queue = ledger_of(2)
    worker_threads.run(queue)
    worker_threads.close()
    assert str(queue.error) == "worker 1: the wheel came off"
    # The batch that was under way is complete.
    assert queue.updates == 1


def test_closing_twice_is_the_same_as_once():
    worker_threads = crew_of(nothing, nothing)
    worker_threads.close()
    worker_threads.close()
    assert worker_threads.alive == 0
    assert all(worker.closed for worker in worker_threads.workers)


def test_closing_in_the_middle_of_a_round_ends_it_after_the_batches_under_way():
    begun = threading.Event()
    count = []

    def work(timestep):
        count.append(timestep)
        begun.set()

    worker_threads = crew_of(work)
    queue = ledger_of(10**9)
    outside = threading.Thread(target=worker_threads.run, args=(queue,), daemon=True)
    outside.start()
    assert begun.wait(DEADLINE)
    worker_threads.close()
    assert worker_threads.alive == 0
    assert queue.take() is None
    assert 0 < queue.updates <= len(count)


def test_a_worker_that_hangs_is_left_behind_with_a_word(monkeypatch, caplog):
    monkeypatch.setattr(worker_threads_module, "PATIENCE", 0.05)
    begun, end = threading.Event(), threading.Event()

    def hang(timestep):
        begun.set()
        end.wait(DEADLINE)

    worker_threads = crew_of(hang)
    threading.Thread(target=worker_threads.run, args=(ledger_of(1),), daemon=True).start()
    assert begun.wait(DEADLINE)
    worker_threads.close()
    assert "steppe-worker-0 does not end" in caplog.text
    assert worker_threads.workers[0].closed
    end.set()
    for thread in steppe_threads():
        thread.join(DEADLINE)
