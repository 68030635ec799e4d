"""The threads of a run, which sleep between two calls of `advance`."""

from __future__ import annotations

import logging
import threading
import time

from steppe.errors import EnvironmentFault
from steppe.runners.engines.threads.thread_worker import ThreadWorker
from steppe.runners.engines.threads.work_queue import WorkQueue

PATIENCE = 30.0
"""How many seconds a thread may take to finish its batch when the engine is closed."""

log = logging.getLogger(__name__)


class WorkerThreads:
    """One thread for each worker."""

    def __init__(self, workers: list[ThreadWorker]) -> None:
        self.workers = workers
        self._condition = threading.Condition()
        self._queue: WorkQueue | None = None
        self._round = 0
        self._busy = 0
        self._is_closing = False
        # Daemons: a thread that hangs in an environment must not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), name=f"steppe-worker-{worker.index}", daemon=True)
            for worker in workers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> int:
        """The number of living threads."""
        return sum(thread.is_alive() for thread in self._threads)

    def run(self, queue: WorkQueue) -> None:
        """Lets all workers take tickets until there are none, and waits until every thread is idle."""
        with self._condition:
            self._queue = queue
            self._round += 1
            self._busy = len(self._threads)
            self._condition.notify_all()
            try:
                self._condition.wait_for(lambda: not self._busy)
            finally:
                queue.stop()
                self._queue = None

    def close(self) -> None:
        """Ends all threads after the batch they are in, and then their environments; may be called again."""
        with self._condition:
            self._is_closing = True
            if self._queue is not None:
                self._queue.stop()
            self._condition.notify_all()
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for worker in self.workers:
            # This ends environments that hang in their own processes, and so their threads.
            worker.close()
        for thread in self._threads:
            thread.join(1.0)
            if thread.is_alive():
                log.warning("%s does not end: its environment has not returned", thread.name)

    def _serve(self, worker: ThreadWorker) -> None:
        done = 0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_closing or self._round > done)  # noqa: B023
                if self._is_closing:
                    return
                done, queue = self._round, self._queue
            assert queue is not None
            self._work(worker, queue)
            del queue
            with self._condition:
                self._busy -= 1
                if not self._busy:
                    self._condition.notify_all()

    def _work(self, worker: ThreadWorker, queue: WorkQueue) -> None:
        try:
            while (timestep := queue.take()) is not None:
                queue.commit(worker.work(timestep))
        except EnvironmentFault as error:
            queue.fail(EnvironmentFault(f"worker {worker.index}: {error}") if len(self.workers) > 1 else error)
        except BaseException as error:
            queue.fail(error)
