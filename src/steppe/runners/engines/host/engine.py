"""The host engine: gymnasium environments stepped in NumPy, learning in one compiled call for each rollout."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from steppe.agents._base import Agent, Metrics, TrainState, Trajectory
from steppe.envs.host import HostEnvs
from steppe.errors import EnvironmentFault
from steppe.policies.policy import Policy
from steppe.runners import keys
from steppe.runners._base import Chunk, Limits
from steppe.runners.arrays import from_arrays, to_arrays
from steppe.runners.compilation import jit_for_learning, jit_for_threads
from steppe.runners.engines.compiled.episode_window import WINDOW
from steppe.runners.engines.host.collecting import Collector
from steppe.runners.engines.learning import Learner, begin, is_healthy, learn
from steppe.runners.engines.spreading import AXIS, EVERYWHERE, Spread
from steppe.runners.play.episodes import Rules, play
from steppe.specs.environment import EnvironmentSpec

BY_ENVIRONMENT = P(None, AXIS)
"""How trajectories [T, N, ...] are cut."""


class HostEngine:
    """Environments in Python, one update at a time."""

    exact_resume = False
    most_iterations = 1024

    def __init__(
        self,
        agent: Agent[Any],
        envs: HostEnvs,
        environment: EnvironmentSpec,
        repeat_actions: int,
        max_timesteps: int | None,
    ) -> None:
        self.agent = agent
        self.envs = envs
        self.notices = envs.notices
        self._environment = environment
        self._episode_rules = (max_timesteps, repeat_actions)
        self.timesteps_per_iteration = agent.horizon * envs.num_envs
        self._spread = Spread(agent)
        self._numbers = self._spread.placed(agent.numbers, EVERYWHERE)
        takes = (EVERYWHERE, EVERYWHERE, BY_ENVIRONMENT)
        learned = self._spread.over_devices(self._learned, takes, (EVERYWHERE, EVERYWHERE))
        # Each device has a core of its own; none hands a part of its products over to another's.
        jitted = jit_for_learning if agent.context.shards == 1 else jit_for_threads
        self._learn = jitted(learned, donate_argnums=0)
        self._metric_names: list[str] = []
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._lengths: deque[int] = deque(maxlen=WINDOW)

    def begin(self, seed: int) -> None:
        """Fresh parameters and fresh episodes."""
        self._learner = self._spread.placed(begin(self.agent, keys.make(seed)), EVERYWHERE)
        self._collector = Collector(self.agent, self.envs, self._state, np.random.default_rng(seed))
        self._collector.start(seed)

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Everything but the environments, which start new episodes."""
        arrays = dict(arrays)
        rng = np.random.default_rng()
        rng.bit_generator.state = json.loads(arrays.pop("host/rng").tobytes())
        self._returns.extend(arrays.pop("host/returns").tolist())
        self._lengths.extend(arrays.pop("host/lengths").tolist())
        template = begin(self.agent, keys.make(seed), pretrains=False)
        self._learner = self._cut_off(self._spread.placed(from_arrays(template, arrays), EVERYWHERE))
        self._collector = Collector(self.agent, self.envs, self._state, rng)
        self._collector.start(int(rng.integers(2**31)))

    def snapshot(self) -> dict[str, np.ndarray]:
        """Agent, memory, randomness and the window of episodes."""
        return to_arrays(self._learner) | {
            "host/rng": np.frombuffer(json.dumps(self._collector.rng.bit_generator.state).encode(), np.uint8),
            "host/returns": np.array(self._returns, np.float32),
            "host/lengths": np.array(self._lengths, np.int32),
        }

    def advance(self, iterations: int, timestep: int, limits: Limits) -> Chunk:
        """Collects and learns, iteration by iteration."""
        rows: list[dict[str, float]] = []
        finished, reached, healthy = 0, False, True
        fault: EnvironmentFault | None = None
        while len(rows) < iterations and not reached and healthy:
            if limits.episodes is not None and finished >= limits.episodes:
                break
            try:
                collected = self._collector.collect(self._state, timestep)
            except EnvironmentFault as error:
                fault = error
                break
            if collected.is_cut_off:
                self._learner = self._cut_off(self._learner)
            trajectory = self._spread.placed(collected.trajectory, BY_ENVIRONMENT)
            self._learner, values = self._learn(self._learner, self._numbers, trajectory)
            metrics = dict(zip(self._metric_names, np.asarray(values).tolist(), strict=True))
            healthy = metrics.pop("is_healthy") == 1.0
            self._returns.extend(collected.returns)
            self._lengths.extend(collected.lengths)
            counts = {"timesteps": collected.timesteps, "episodes": len(collected.returns)}
            rows.append(counts | {"mean_return": _mean(self._returns), "mean_length": _mean(self._lengths)} | metrics)
            timestep += collected.timesteps
            finished += len(collected.returns)
            is_full = len(self._returns) == WINDOW
            reached = limits.stop_at_return is not None and is_full and _mean(self._returns) >= limits.stop_at_return
        columns = {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}
        return Chunk(len(rows), columns, reached, healthy, fault)

    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """Plays in environments of its own, several at once."""
        rules = Rules(self._environment, *self._episode_rules)
        return play(self.policy(0), rules, self.envs.num_envs, episodes, greedy, seed)

    def policy(self, timestep: int) -> Policy:
        """The policy as of the last update."""
        return self.agent.policy(self._learner.agent, timestep)

    def close(self) -> None:
        """Ends the environments and their processes."""
        self.envs.close()

    @property
    def _state(self) -> TrainState:
        """The agent's, to act with."""
        return self._spread.one_copy(self._learner.agent)

    def _cut_off(self, learner: Learner) -> Learner:
        """What comes next does not follow from the newest timesteps of the memory."""
        if self.agent.experience != "transitions":
            return learner
        return learner._replace(memory=self.agent.memory.cut(learner.memory))

    def _learned(self, learner: Learner, numbers: Any, trajectory: Trajectory) -> tuple[Learner, Array]:
        """`learn` with all metrics in one vector, so that one transfer brings them."""
        metrics: Metrics
        learner, metrics = learn(self.agent.with_numbers(numbers), learner, trajectory)
        metrics["is_healthy"] = is_healthy(learner, metrics)
        self._metric_names = list(metrics)
        return learner, self._spread.averaged(jnp.stack([jnp.float32(value) for value in metrics.values()]))


def _mean(values: deque[Any]) -> float:
    return float(np.mean(values)) if values else float("nan")
