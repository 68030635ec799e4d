"""The engine of run mode multi-threaded: many workers in threads of one process, one model (Hogwild)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from steppe.agents._base import ActorParams, Agent
from steppe.errors import CheckpointError, EnvironmentFault
from steppe.policies.policy import Policy
from steppe.runners import keys
from steppe.runners._base import Chunk, ChunkLimits, Engine
from steppe.runners.arrays import below, from_arrays, to_arrays
from steppe.runners.engines.compiled.rollout import Rollout
from steppe.runners.engines.learning import LARGEST_TIMESTEP, begin
from steppe.runners.engines.threads.exploration import explores_apart
from steppe.runners.engines.threads.model import SharedModel
from steppe.runners.engines.threads.optimizer_plan import plan_for
from steppe.runners.engines.threads.program import Program
from steppe.runners.engines.threads.thread_worker import ThreadWorker
from steppe.runners.engines.threads.work_queue import WorkQueue
from steppe.runners.engines.threads.worker_threads import WorkerThreads
from steppe.runners.episode_window import EpisodeWindow
from steppe.runners.play.episodes import EpisodeRules, play


class HostEnvPool:
    """Makes environments for one worker after the other; the first ones already exist, for their spaces."""

    def __init__(self, first: Any, make: Callable[[], Any]) -> None:
        self._made = [first]
        self._make = make
        self._given = 0

    def give(self) -> Any:
        """Returns the environments of the next worker."""
        if self._given == len(self._made):
            self._made.append(self._make())
        self._given += 1
        return self._made[self._given - 1]

    def close(self) -> None:
        """Closes all environments and their processes; may be called again."""
        for envs in self._made:
            envs.close()


class ThreadsEngine(Engine):
    """`num_workers` threads; an iteration is one batch of one of them."""

    def __init__(
        self,
        agent: Agent[Any],
        num_workers: int,
        rules: EpisodeRules,
        rollout: Rollout | None,
        hosts: HostEnvPool | None,
    ) -> None:
        """Exactly one of `rollout` (compiled environments) and `hosts` (host environments) is given."""
        self.agent = agent
        self.num_workers = num_workers
        self.timesteps_per_iteration = agent.horizon * agent.context.num_envs
        self.most_iterations = int(np.clip(2**20 // self.timesteps_per_iteration, num_workers, 1024))
        self.least_iterations = num_workers
        self.exact_resume = rollout is not None
        self.plan = plan_for(agent)
        self._rules, self.rollout, self._hosts = rules, rollout, hosts
        self._play = None if rollout is None else rollout.compiled_play()
        self._worker_threads: WorkerThreads | None = None
        self._is_warm = False

    def begin(self, seed: int) -> None:
        """Starts with fresh parameters and fresh episodes."""
        self._build(seed, pretrains=True)
        self._start()

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Restores every worker; host environments start new episodes."""
        self._build(seed, pretrains=False)
        count = arrays.get("workers")
        if count is None or int(count) != self.num_workers:
            raise CheckpointError(
                f"the checkpoint is of {'another run mode' if count is None else f'{int(count)} workers'}, but this "
                f"experiment has {self.num_workers} in threads; it was made by an experiment with other settings"
            )
        self.model.restore(below("model/", arrays))
        for worker in self._workers:
            carry = from_arrays(worker.carry(), below(f"workers/{worker.index}/", arrays))
            worker.restore(carry, arrays.get(f"randomness/{worker.index}"))
        self.window.record(arrays["window/returns"].tolist(), arrays["window/lengths"].tolist())
        self._start()

    def snapshot(self) -> dict[str, np.ndarray]:
        """The model, and each worker's environments, randomness and memory."""
        arrays = {f"model/{name}": value for name, value in self.model.arrays().items()}
        arrays["workers"] = np.array(self.num_workers)
        for worker in self._workers:
            arrays |= to_arrays({"workers": {str(worker.index): worker.carry()}})
            if (randomness := worker.randomness()) is not None:
                arrays[f"randomness/{worker.index}"] = randomness
        return arrays | {
            "window/returns": np.array(self.window.returns, np.float64),
            "window/lengths": np.array(self.window.lengths, np.int64),
        }

    def advance(self, iterations: int, timestep: int, limits: ChunkLimits) -> Chunk:
        """Hands out `iterations` tickets, or fewer if a limit is reached, and returns when every thread is idle."""
        assert self._worker_threads is not None
        queue = WorkQueue(iterations, timestep, limits, self.window)
        began = time.perf_counter()
        # Batches under way when the mean reached stop_at_return may have lowered it again.
        while queue.has_more:
            self._worker_threads.run(queue)
        spent = time.perf_counter() - began
        if queue.error is not None and not isinstance(queue.error, EnvironmentFault):
            raise queue.error
        constants = {"workers": float(self._worker_threads.alive)}
        if self._is_warm:
            constants["updates_per_second"] = queue.updates / spent
        self._is_warm = True
        return queue.chunk(self._program.metric_names, constants, self.model.is_finite())

    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """Plays in environments of its own."""
        if self._play is None:
            return play(self.policy(0), self._rules, self.agent.context.num_envs, episodes, greedy, seed)
        # Like the saved policy, without the noise that some agents explore with.
        state = self.model.state()
        acting = ActorParams(state.params, state.observations)
        returns, lengths = self._play(acting, keys.make(seed), episodes, greedy, jnp.int32(LARGEST_TIMESTEP))
        return float(np.mean(returns)), float(np.mean(lengths))

    def policy(self, timestep: int) -> Policy:
        """The policy of the current model."""
        return self.agent.policy(self.model.state(), timestep)

    def close(self) -> None:
        """Ends threads, environments and their processes; may be called again."""
        if self._worker_threads is not None:
            self._worker_threads.close()
        if self._hosts is not None:
            self._hosts.close()

    def _build(self, seed: int, pretrains: bool) -> None:
        """Builds the model and the workers in their initial state."""
        agent = self.agent
        learner = begin(agent, keys.make(seed), pretrains)
        self.model = SharedModel(agent, self.plan, learner.agent)
        self.window = EpisodeWindow()
        self._program = Program(
            agent, self.plan, self.rollout, self.model.example(), explores_apart(agent, self.num_workers)
        )
        self._workers = []
        for index in range(self.num_workers):
            envs = None if self._hosts is None else self._hosts.give()
            self._workers.append(ThreadWorker(index, self._program, self.model, seed, learner.memory, envs))

    def _start(self) -> None:
        for worker in self._workers:
            worker.start()
        self._worker_threads = WorkerThreads(self._workers)
