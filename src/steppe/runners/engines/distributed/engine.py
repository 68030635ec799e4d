"""The driver of run mode distributed: it sends orders, counts, saves and replaces, but neither acts nor learns."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack
from typing import Any

import jax.numpy as jnp
import numpy as np

from steppe.agents._base import ActorParams, TrainState
from steppe.errors import EnvironmentFault
from steppe.policies.policy import Policy
from steppe.runners import keys, pods
from steppe.runners._base import Chunk, ChunkLimits, Engine
from steppe.runners.arrays import below
from steppe.runners.compilation import keep_off_gpus
from steppe.runners.engines.distributed import server_pool
from steppe.runners.engines.distributed.gradient_tape import parts_of
from steppe.runners.engines.distributed.gradient_worker_pool import GradientWorkerPool
from steppe.runners.engines.distributed.messages import WorkerConfig, WorkOrder, WorkReport
from steppe.runners.engines.distributed.moments import NormalizerMoments, moments
from steppe.runners.engines.distributed.parameter_server import State, fresh_state
from steppe.runners.engines.distributed.plan import borders_of, rollouts_per_push, shard_config, worker_engine
from steppe.runners.engines.distributed.report_totals import ReportTotals
from steppe.runners.engines.distributed.rollout_learner import statistics
from steppe.runners.engines.distributed.server_pool import ServerPool
from steppe.runners.engines.distributed.shards import joined_state, split_state
from steppe.runners.engines.learning import LARGEST_TIMESTEP, begin
from steppe.runners.play.episodes import EpisodeRules, play
from steppe.runners.ray.placement import check_room, check_sharing
from steppe.runners.ray.ray_session import ray_session
from steppe.specs.experiment import ExperimentSpec, dump

TICK_SECONDS = 0.1
"""How long `advance` gathers reports before it returns them."""
LONGEST_TICK_SECONDS = 0.25
"""How long it waits for the first one."""
ORDER_SECONDS = 0.2
"""How long a worker sends pushes before it reports."""
DEPTH = 2
"""How many orders a worker has at once, so that it never waits for the driver."""
MOST_PUSHES = 1000
"""The pushes that one order allows if no limit is near."""

log = logging.getLogger(__name__)


class DistributedEngine(Engine):
    """Parameter servers and workers on Ray."""

    settings_per_worker = ("memory.capacity",)

    def __init__(self, spec: ExperimentSpec) -> None:
        self.spec = spec
        if spec.ray.gpus_per_worker:
            # With a GPU, JAX in this process would take most of the memory that workers share.
            keep_off_gpus()
        alone = worker_engine(spec)
        alone.close()
        self.agent = alone.agent
        self.notices, self.rollout = alone.notices, alone.rollout
        self._parts = parts_of(self.agent)
        self._borders = borders_of(self.agent.layout.size, spec.num_parameter_servers)
        self.exact_resume = self.rollout is not None
        self._rollouts = rollouts_per_push(spec, self.agent)
        self.timesteps_per_iteration = self._rollouts * self.agent.horizon * self.agent.context.num_envs
        self._stack = ExitStack()
        self._totals = ReportTotals()
        self._roll_call = pods.RollCall()
        self._servers: ServerPool | None = None
        self._pool: GradientWorkerPool | None = None
        self._first_worker = self._round = self._version = 0
        self._left: dict[int, dict[str, np.ndarray]] = {}
        """The state of the workers in the checkpoint that the run resumes from, by number."""
        self._is_warm = False
        """Whether a synchronous round was completed since the start."""
        self._round_reports: list[WorkReport] | None = None
        """The reports of a synchronous round that is not complete."""

    def begin(self, seed: int) -> None:
        """Starts with fresh parameters; returns when the servers are ready, while workers still start."""
        state = self._fresh(seed, pretrains=True)
        seen = NormalizerMoments(moments(state.observations), moments(state.returns)) if self._normalizes else None
        whole = fresh_state(np.array(state.params), np.array(state.target), int(state.updates), seen)
        self._start(whole, seed)

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Restores the servers, and the workers if there are as many; otherwise workers begin with empty memories."""
        own = below("driver/", arrays)
        self._totals.restore(own)
        self._fresh(seed, pretrains=False)
        self._first_worker, numbers = int(own["next_worker"]), own["workers"].tolist()
        # Checkpoints of earlier versions have no count, only the workers themselves.
        before, now = int(own.get("num_workers", len(numbers))), self.spec.num_workers
        if before == now:
            self._left = {number: below(f"workers/{number}/", arrays) for number in numbers}
        if len(self._left) < now:
            self.exact_resume = False
            self.resume_notice = self._what_is_new(before, now)
        self._start(below("servers/", arrays), seed)

    def snapshot(self) -> dict[str, np.ndarray]:
        """All shards and all workers at one moment, when no push is under way."""
        self._drain()
        whole = joined_state(self._its_servers.states(), self._borders, self._parts)
        workers = self._its_pool.arrays() | self._not_begun()
        own = self._totals.arrays() | {
            "next_worker": np.array(self._its_pool.next_number),
            "num_workers": np.array(self.spec.num_workers),
            "workers": np.array(list(workers), np.int64),
        }
        arrays = {f"servers/{name}": array for name, array in whole.items()}
        arrays |= {f"driver/{name}": array for name, array in own.items()}
        for number, each in workers.items():
            arrays |= {f"workers/{number}/{name}": array for name, array in each.items()}
        return arrays

    def advance(self, iterations: int, timestep: int, limits: ChunkLimits) -> Chunk:
        """Collects the workers' reports for a tenth of a second or so; returns them as one row."""
        started = time.monotonic()
        while True:
            self._give_orders(timestep)
            spent = time.monotonic() - started
            self._gather(min(TICK_SECONDS, LONGEST_TICK_SECONDS - spent))
            self._its_servers.check()
            spent = time.monotonic() - started
            is_urgent = self._totals.has_trouble or self._totals.has_reached(limits)
            if is_urgent or spent >= LONGEST_TICK_SECONDS or (spent >= TICK_SECONDS and self._totals.has_row):
                working = self._its_pool.working
                self._roll_call.note("worker", working, self.spec.num_workers)
                return self._totals.chunk(limits, working)

    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """Plays in this process while the workers carry out their orders."""
        context = self.agent.context
        if self.rollout is None:
            rules = EpisodeRules(self.spec.environment, context.episode_limit, self.spec.repeat_actions)
            return play(self.policy(0), rules, context.num_envs, episodes, greedy, seed)
        state, key = self._newest(), keys.make(seed)
        # Like the saved policy, without the noise that some agents explore with.
        acting = ActorParams(state.params, state.observations)
        returns, lengths = self._play(acting, key, episodes, greedy, jnp.int32(LARGEST_TIMESTEP))
        return float(np.mean(returns)), float(np.mean(lengths))

    def policy(self, timestep: int) -> Policy:
        """The policy of the servers' current parameters."""
        return self.agent.policy(self._newest(), timestep)

    def close(self) -> None:
        """Ends workers, servers, and the Ray that was started for them."""
        self._stack.close()

    @property
    def _its_servers(self) -> ServerPool:
        assert self._servers is not None
        return self._servers

    @property
    def _its_pool(self) -> GradientWorkerPool:
        assert self._pool is not None
        return self._pool

    @property
    def _normalizes(self) -> bool:
        return self.agent.normalizes_observations or self.agent.context.normalize_rewards

    def _fresh(self, seed: int, pretrains: bool) -> TrainState:
        """The agent's initial state, which is kept as a template for policies."""
        if pretrains and self.agent.pretraining_updates:
            state = begin(self.agent, keys.make(seed)).agent
        else:
            state = self.agent.init(keys.make(seed))
        self._template = state
        if self.rollout is not None:
            self._play = self.rollout.compiled_play()
        return state

    def _start(self, whole: State, seed: int) -> None:
        spec = self.spec
        cpus = spec.num_workers * spec.ray.cpus_per_worker + spec.num_parameter_servers * server_pool.CPUS
        check_sharing(spec)
        try:
            if spec.platform == "kubernetes":
                session = self._stack.enter_context(ray_session(pods.ray_of(spec), cpus=0))
                pods.wait_for_pods(spec, self._roll_call)
            else:
                session = self._stack.enter_context(ray_session(spec.ray, cpus=cpus))
            import ray

            check_room(ray, spec.ray, can_grow=not session.is_own or spec.ray.port is not None)
            self._version, _, self._round = (int(number) for number in whole["counters"])
            states = split_state(whole, self._borders, self._parts)
            configs = [
                shard_config(spec, self.agent, self._parts, start, stop)
                for start, stop in zip(self._borders, self._borders[1:], strict=False)
            ]
            timeout = spec.distributed.worker_timeout
            self._servers = ServerPool(ray, configs, states, timeout, pods.pod_resources(spec, "server"))
            self._stack.callback(self._servers.close)

            def config(number: int) -> WorkerConfig:
                return WorkerConfig(
                    number=number,
                    seed=seed,
                    spec=dump(spec),
                    borders=self._borders,
                    rollouts=self._rollouts,
                    overlaps=spec.distributed.overlap,
                    # Half, so that a worker that waits for a hanging server does not count as hanging itself.
                    timeout=timeout / 2,
                    left=self._left.get(number) or None,
                    paths=tuple(sys.path),
                )

            room = pods.pod_resources(spec, "worker")
            self._pool = GradientWorkerPool(ray, spec.ray, config, timeout, self._first_worker, room)
            self._stack.callback(self._pool.close)
            self._pool.fill(spec.num_workers, list(self._left))
        except BaseException:
            self.close()
            raise

    def _give_orders(self, timestep: int) -> None:
        pool = self._its_pool
        if not self._its_servers.are_there:
            return
        if not self.spec.distributed.synchronous:
            pool.order("collect", DEPTH, lambda: self._order(timestep))
            return
        # The first round waits for all workers, so that runs with the same seed are the same.
        if self._round_reports is None and (self._is_warm or pool.is_complete):
            pool.order("contribute", 1, lambda: self._order(timestep))
            if pool.is_busy:
                self._round_reports = []

    def _order(self, timestep: int) -> WorkOrder | None:
        """The next order; None if all remaining timesteps are ordered."""
        pool, limit = self._its_pool, self.spec.limits[1]
        known = timestep + self._totals.timesteps
        pushes = 1 if self.spec.distributed.synchronous else MOST_PUSHES
        if limit is not None:
            left = -(-(limit - known) // self.timesteps_per_iteration) - pool.pushes_allowed
            if left <= 0:
                return None
            pushes = min(pushes, max(1, left // (DEPTH * max(pool.working, 1))))
        return WorkOrder(self._its_servers.handles, pushes, ORDER_SECONDS, known, self.spec.num_workers)

    def _gather(self, seconds: float) -> None:
        """Handles the workers' reports of the next `seconds`."""
        try:
            reports = self._its_pool.poll(seconds)
        except EnvironmentFault as fault:
            self._totals.note_fault(fault)
            reports = self._its_pool.unreported()
        if self._left:
            self._left = self._not_begun()
        lost = sorted({index for report in reports for index in report.lost_servers})
        if lost:
            self._its_servers.replace_lost(lost)
        if not self.spec.distributed.synchronous:
            self._totals.take_in(reports)
        elif self._round_reports is not None:
            self._round_reports += [report for report in reports if report.pushes or report.timesteps]
            if not self._its_pool.is_busy:
                self._end_round()

    def _end_round(self) -> None:
        """Takes one update with the mean gradients, after all workers have answered or were lost."""
        reports, self._round_reports = self._round_reports or [], None
        reports.sort(key=lambda report: report.worker)
        before, self._is_warm = self._version, True
        self._round += 1
        self._version = self._its_servers.step_together(self._round, [each.worker for each in reports if each.pushes])
        if reports:
            # A server that replaced another may have made fewer updates.
            reports[0].updates = max(self._version - before, 0)
        self._totals.take_in(reports)

    def _not_begun(self) -> dict[int, dict[str, np.ndarray]]:
        """The state of workers that are still starting: from the checkpoint, or empty for new workers."""
        return {number: self._left.get(number, {}) for number in self._its_pool.awaited}

    def _what_is_new(self, before: int, now: int) -> str:
        """The notice on resume if not all workers could be restored."""
        if before == now:
            who, reason = f"{now - len(self._left)} of {now} workers", "did not answer when the checkpoint was made"
        else:
            who, reason = f"all {now} workers", f"are not the {before} of the checkpoint"
        what = "empty memories" if self.agent.experience == "transitions" else "other random numbers"
        if self.rollout is None:
            # Python environments cannot continue their episodes.
            return f"all workers start new episodes, and {who} with {what}, since these {reason}; all else goes on"
        return f"{who} start new episodes with {what}, since they {reason}; all else goes on exactly"

    def _drain(self) -> None:
        """Waits until no worker has an order."""
        while self._its_pool.is_busy:
            self._gather(LONGEST_TICK_SECONDS)

    def _newest(self) -> TrainState:
        answers = self._its_servers.pull()
        params: Any = np.concatenate([answer.params for answer in answers])
        state = self._template._replace(params=params)
        seen = answers[0].seen
        if seen is None:
            return state
        return state._replace(observations=statistics(seen.observations), returns=statistics(seen.returns))
