"""The driver of run mode distributed: it orders, counts, copies and mends, but neither acts nor learns itself."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steppe.agents._base import ActorParams, TrainState
from steppe.errors import EnvironmentFault
from steppe.policies.policy import Policy
from steppe.runners import keys, pods
from steppe.runners._base import Chunk, Limits
from steppe.runners.compilation import keep_off_gpus
from steppe.runners.engines.distributed import servers as server_places
from steppe.runners.engines.distributed.counting import Count
from steppe.runners.engines.distributed.crew import Crew
from steppe.runners.engines.distributed.messages import Order, Posting, Report
from steppe.runners.engines.distributed.moments import Seen, moments
from steppe.runners.engines.distributed.plan import borders_of, duty_of, rollouts_per_push, worker_engine
from steppe.runners.engines.distributed.server import State, fresh_state
from steppe.runners.engines.distributed.servers import Servers
from steppe.runners.engines.distributed.shards import joined, shared_out
from steppe.runners.engines.distributed.tape import parts_of
from steppe.runners.engines.distributed.work import statistics
from steppe.runners.engines.learning import LARGEST_TIMESTEP, begin
from steppe.runners.play.episodes import Rules, play
from steppe.runners.ray.placing import check_room, check_sharing
from steppe.runners.ray.ray_session import ray_session
from steppe.specs.experiment import ExperimentSpec, dump

TICK_SECONDS = 0.1
"""How long `advance` gathers reports before it returns them."""
LONGEST_TICK_SECONDS = 0.25
"""How long it waits for the first one."""
ORDER_SECONDS = 0.2
"""How long a worker pushes on before it reports."""
DEPTH = 2
"""How many orders a worker has at once, so that it never waits for the driver."""
MOST_PUSHES = 1000
"""What one order allows where no limit is near."""

log = logging.getLogger(__name__)


class DistributedEngine:
    """Parameter servers and workers on Ray."""

    most_iterations = 1024
    shared_out = ("memory.capacity",)
    """Settings of the agent of which each worker has its part."""

    def __init__(self, spec: ExperimentSpec) -> None:
        self.spec = spec
        if spec.ray.gpus_per_worker:
            # JAX would take most of the memory of a GPU that workers are to share.
            keep_off_gpus()
        alone = worker_engine(spec)
        alone.close()
        self.agent = alone.agent
        self.notices: tuple[str, ...] = alone.notices
        self._rollout = getattr(alone, "rollout", None)
        """Where the environment is compiled."""
        self._parts = parts_of(self.agent)
        self._borders = borders_of(self.agent.layout.size, spec.num_parameter_servers)
        self.exact_resume = self._rollout is not None
        self._rollouts = rollouts_per_push(spec, self.agent)
        self.timesteps_per_iteration = self._rollouts * self.agent.horizon * self.agent.context.num_envs
        self._stack = ExitStack()
        self._count = Count()
        self._roll = pods.RollCall()
        self._servers: Servers | None = None
        self._crew: Crew | None = None
        self._first_worker = self._round = self._version = 0
        self._left: dict[int, dict[str, np.ndarray]] = {}
        """What workers have left in the checkpoint that the run goes on from, by number."""
        self._is_warm = False
        """Whether a synchronous round has been made since the start."""
        self._round_reports: list[Report] | None = None
        """What came of a synchronous round that is not over."""

    def begin(self, seed: int) -> None:
        """Fresh parameters; the servers are there when this returns, and the workers are on their way."""
        state = self._fresh(seed, pretrains=True)
        seen = Seen(moments(state.observations), moments(state.returns)) if self._normalizes else None
        whole = fresh_state(np.array(state.params), np.array(state.target), int(state.updates), seen)
        self._start(whole, seed)

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """The servers go on as they were, and the workers where there are as many; else their memories are new."""
        own = _below("driver/", arrays)
        self._count.restore(own)
        self._fresh(seed, pretrains=False)
        self._first_worker, numbers = int(own["next_worker"]), own["workers"].tolist()
        # A checkpoint of before that was kept tells only of those that it holds.
        before, now = int(own.get("num_workers", len(numbers))), self.spec.num_workers
        if before == now:
            self._left = {number: _below(f"workers/{number}/", arrays) for number in numbers}
        if len(self._left) < now:
            self.exact_resume = False
            self.resume_notice = self._what_is_new(before, now)
        self._start(_below("servers/", arrays), seed)

    def snapshot(self) -> dict[str, np.ndarray]:
        """All shards and all workers as of one moment: no push is on its way."""
        self._drain()
        whole = joined(self._its_servers.states(), self._borders, self._parts)
        workers = self._its_crew.arrays() | self._not_begun()
        own = self._count.arrays() | {
            "next_worker": np.array(self._its_crew.next_number),
            "num_workers": np.array(self.spec.num_workers),
            "workers": np.array(list(workers), np.int64),
        }
        arrays = {f"servers/{name}": array for name, array in whole.items()}
        arrays |= {f"driver/{name}": array for name, array in own.items()}
        for number, each in workers.items():
            arrays |= {f"workers/{number}/{name}": array for name, array in each.items()}
        return arrays

    def advance(self, iterations: int, timestep: int, limits: Limits) -> Chunk:
        """What all workers together have done in the last tenth of a second or so, as one row."""
        started = time.monotonic()
        while True:
            self._give_orders(timestep)
            spent = time.monotonic() - started
            self._gather(min(TICK_SECONDS, LONGEST_TICK_SECONDS - spent))
            self._its_servers.look_after()
            spent = time.monotonic() - started
            is_urgent = self._count.has_trouble or self._count.has_reached(limits)
            if is_urgent or spent >= LONGEST_TICK_SECONDS or (spent >= TICK_SECONDS and self._count.has_row):
                working = self._its_crew.working
                self._roll.note("worker", working, self.spec.num_workers)
                return self._count.chunk(limits, working)

    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """Plays in this process; the workers meanwhile do what they were ordered."""
        situation = self.agent.context
        if self._rollout is None:
            rules = Rules(self.spec.environment, situation.episode_limit, self.spec.repeat_actions)
            return play(self.policy(0), rules, situation.num_envs, episodes, greedy, seed)
        state, key = self._newest(), keys.make(seed)
        # As the saved policy acts: without the noise that some agents explore with.
        acting = ActorParams(state.params, state.observations)
        returns, lengths = self._play(acting, key, episodes, greedy, jnp.int32(LARGEST_TIMESTEP))
        return float(np.mean(returns)), float(np.mean(lengths))

    def policy(self, timestep: int) -> Policy:
        """As the servers know it now."""
        return self.agent.policy(self._newest(), timestep)

    def close(self) -> None:
        """Ends workers, servers and the Ray that was started for them."""
        self._stack.close()

    @property
    def _its_servers(self) -> Servers:
        assert self._servers is not None
        return self._servers

    @property
    def _its_crew(self) -> Crew:
        assert self._crew is not None
        return self._crew

    @property
    def _normalizes(self) -> bool:
        return self.agent.normalizes_observations or self.agent.context.normalize_rewards

    def _fresh(self, seed: int, pretrains: bool) -> TrainState:
        """The agent before its first timestep; kept as what policies are made from."""
        if pretrains and self.agent.pretraining_updates:
            state = begin(self.agent, keys.make(seed)).agent
        else:
            state = self.agent.init(keys.make(seed))
        self._template = state
        if self._rollout is not None:
            self._play = jax.jit(self._rollout.play, static_argnums=(2, 3))
        return state

    def _start(self, whole: State, seed: int) -> None:
        spec = self.spec
        cpus = spec.num_workers * spec.ray.cpus_per_worker + spec.num_parameter_servers * server_places.CPUS
        check_sharing(spec)
        try:
            if spec.platform == "kubernetes":
                session = self._stack.enter_context(ray_session(pods.ray_of(spec), cpus=0))
                pods.wait_for_pods(spec, self._roll)
            else:
                session = self._stack.enter_context(ray_session(spec.ray, cpus=cpus))
            import ray

            check_room(ray, spec.ray, can_grow=not session.is_own or spec.ray.port is not None)
            self._version, _, self._round = (int(number) for number in whole["counters"])
            states = shared_out(whole, self._borders, self._parts)
            duties = [
                duty_of(spec, self.agent, self._parts, start, stop)
                for start, stop in zip(self._borders, self._borders[1:], strict=False)
            ]
            timeout = spec.distributed.worker_timeout
            self._servers = Servers(ray, duties, states, timeout, pods.room_for(spec, "server"))
            self._stack.callback(self._servers.close)

            def posting(number: int) -> Posting:
                return Posting(
                    number=number,
                    seed=seed,
                    spec=dump(spec),
                    borders=self._borders,
                    rollouts=self._rollouts,
                    overlaps=spec.distributed.overlap,
                    # Half: who waits for a server that hangs is not to be taken for hanging.
                    timeout=timeout / 2,
                    left=self._left.get(number) or None,
                    paths=tuple(sys.path),
                )

            room = pods.room_for(spec, "worker")
            self._crew = Crew(ray, spec.ray, posting, timeout, self._first_worker, room)
            self._stack.callback(self._crew.close)
            self._crew.fill(spec.num_workers, list(self._left))
        except BaseException:
            self.close()
            raise

    def _give_orders(self, timestep: int) -> None:
        crew = self._its_crew
        if not self._its_servers.are_there:
            return
        if not self.spec.distributed.synchronous:
            crew.order("collect", DEPTH, lambda: self._order(timestep))
            return
        # The first round waits for all, so that runs of the same seed are the same.
        if self._round_reports is None and (self._is_warm or crew.is_complete):
            crew.order("contribute", 1, lambda: self._order(timestep))
            if crew.is_busy:
                self._round_reports = []

    def _order(self, timestep: int) -> Order | None:
        """The next thing to do; None where all that is left to do was ordered."""
        crew, limit = self._its_crew, self.spec.limits[1]
        known = timestep + self._count.timesteps
        pushes = 1 if self.spec.distributed.synchronous else MOST_PUSHES
        if limit is not None:
            left = -(-(limit - known) // self.timesteps_per_iteration) - crew.pushes_allowed
            if left <= 0:
                return None
            pushes = min(pushes, max(1, left // (DEPTH * max(crew.working, 1))))
        return Order(self._its_servers.handles, pushes, ORDER_SECONDS, known, self.spec.num_workers)

    def _gather(self, seconds: float) -> None:
        """Takes in what workers report within so many seconds."""
        try:
            reports = self._its_crew.poll(seconds)
        except EnvironmentFault as fault:
            self._count.note_fault(fault)
            reports = self._its_crew.untold()
        if self._left:
            self._left = self._not_begun()
        lost = sorted({index for report in reports for index in report.lost_servers})
        if lost:
            self._its_servers.mend(lost)
        if not self.spec.distributed.synchronous:
            self._count.take_in(reports)
        elif self._round_reports is not None:
            self._round_reports += [report for report in reports if report.pushes or report.timesteps]
            if not self._its_crew.is_busy:
                self._end_round()

    def _end_round(self) -> None:
        """All that were asked have answered, or are lost: one update with the mean of what they sent."""
        reports, self._round_reports = self._round_reports or [], None
        reports.sort(key=lambda report: report.worker)
        before, self._is_warm = self._version, True
        self._round += 1
        self._version = self._its_servers.step_together(self._round, [each.worker for each in reports if each.pushes])
        if reports:
            # A server that took over for another may know of fewer.
            reports[0].updates = max(self._version - before, 0)
        self._count.take_in(reports)

    def _not_begun(self) -> dict[int, dict[str, np.ndarray]]:
        """What workers that are on their way will have of their own: what was left, or what follows from a number."""
        return {number: self._left.get(number, {}) for number in self._its_crew.awaited}

    def _what_is_new(self, before: int, now: int) -> str:
        """What is said of a resumed run whose workers are not all as they were."""
        if before == now:
            who, reason = f"{now - len(self._left)} of {now} workers", "did not answer when the checkpoint was made"
        else:
            who, reason = f"all {now} workers", f"are not the {before} of the checkpoint"
        what = "empty memories" if self.agent.experience == "transitions" else "other random numbers"
        if self._rollout is None:
            # No environment in Python goes on with its episodes.
            return f"all workers start new episodes, and {who} with {what}, since these {reason}; all else goes on"
        return f"{who} start new episodes with {what}, since they {reason}; all else goes on exactly"

    def _drain(self) -> None:
        """Waits until no worker has anything to do."""
        while self._its_crew.is_busy:
            self._gather(LONGEST_TICK_SECONDS)

    def _newest(self) -> TrainState:
        answers = self._its_servers.pull()
        params: Any = np.concatenate([answer.params for answer in answers])
        state = self._template._replace(params=params)
        seen = answers[0].seen
        if seen is None:
            return state
        return state._replace(observations=statistics(seen.observations), returns=statistics(seen.returns))


def _below(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is named after a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
