"""The host engine: gymnasium environments stepped in NumPy, learning in one compiled call for each rollout."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec as P

from steppe.agents._base import Agent, TrainState
from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import EnvironmentFault
from steppe.policies.policy import Policy
from steppe.runners import keys
from steppe.runners._base import Chunk, ChunkLimits, Engine
from steppe.runners.arrays import from_arrays, to_arrays
from steppe.runners.compilation import jit_for_learning, jit_for_threads
from steppe.runners.engines.device_spread import AXIS, EVERYWHERE, DeviceSpread
from steppe.runners.engines.host.rollout_collector import RolloutCollector
from steppe.runners.engines.learning import LearnStep, begin, episodes_cut
from steppe.runners.episode_window import EpisodeWindow
from steppe.runners.play.episodes import EpisodeRules, play
from steppe.specs.environment import EnvironmentSpec

BY_ENVIRONMENT = P(None, AXIS)
"""How trajectories [T, N, ...] are divided among devices."""


class HostEngine(Engine):
    """Environments in Python, one update at a time."""

    def __init__(
        self,
        agent: Agent[Any],
        envs: GymnasiumEnvs,
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
        self._spread = DeviceSpread(agent)
        self.shards = self._spread.shards
        self._numbers = self._spread.put(agent.numbers, EVERYWHERE)
        self._step = LearnStep(agent, self._spread.pmean)
        takes = (EVERYWHERE, EVERYWHERE, BY_ENVIRONMENT)
        learned = self._spread.on_all_devices(self._step.learn, takes, (EVERYWHERE, EVERYWHERE))
        # Each device has a core of its own, and computes its products alone.
        jitted = jit_for_learning if agent.context.shards == 1 else jit_for_threads
        self._learn = jitted(learned, donate_argnums=0)
        self._window = EpisodeWindow()

    def begin(self, seed: int) -> None:
        """Starts with fresh parameters and fresh episodes."""
        self._learner = self._spread.put(begin(self.agent, keys.make(seed)), EVERYWHERE)
        self._collector = RolloutCollector(self.agent, self.envs, self._state, np.random.default_rng(seed))
        self._collector.start(seed)

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Restores everything but the environments, which start new episodes."""
        arrays = dict(arrays)
        rng = np.random.default_rng()
        rng.bit_generator.state = json.loads(arrays.pop("host/rng").tobytes())
        self._window.record(arrays.pop("host/returns").tolist(), arrays.pop("host/lengths").tolist())
        template = begin(self.agent, keys.make(seed), pretrains=False)
        restored = self._spread.put(from_arrays(template, arrays), EVERYWHERE)
        self._learner = episodes_cut(self.agent, restored)
        self._collector = RolloutCollector(self.agent, self.envs, self._state, rng)
        self._collector.start(int(rng.integers(2**31)))

    def snapshot(self) -> dict[str, np.ndarray]:
        """Agent, memory, randomness and the window of episodes."""
        return to_arrays(self._learner) | {
            "host/rng": np.frombuffer(json.dumps(self._collector.rng.bit_generator.state).encode(), np.uint8),
            "host/returns": np.array(self._window.returns, np.float32),
            "host/lengths": np.array(self._window.lengths, np.int32),
        }

    def advance(self, iterations: int, timestep: int, limits: ChunkLimits) -> Chunk:
        """Collects rollouts and learns from them, one by one."""
        window, rows = self._window, list[dict[str, float]]()
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
                self._learner = episodes_cut(self.agent, self._learner)
            trajectory = self._spread.put(collected.trajectory, BY_ENVIRONMENT)
            self._learner, values = self._learn(self._learner, self._numbers, trajectory)
            metrics = self._step.named(values)
            healthy = metrics.pop("is_healthy") == 1.0
            window.record(collected.returns, collected.lengths)
            counts = {"timesteps": collected.timesteps, "episodes": len(collected.returns)}
            rows.append(counts | {"mean_return": window.mean_return, "mean_length": window.mean_length} | metrics)
            timestep += collected.timesteps
            finished += len(collected.returns)
            reached = window.has_reached(limits.stop_at_return)
        columns = {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}
        return Chunk(len(rows), columns, reached, healthy, fault)

    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """Plays in environments of its own, several at once."""
        rules = EpisodeRules(self._environment, *self._episode_rules)
        return play(self.policy(0), rules, self.envs.num_envs, episodes, greedy, seed)

    def policy(self, timestep: int) -> Policy:
        """The policy as of the last update."""
        return self.agent.policy(self._learner.agent, timestep)

    def close(self) -> None:
        """Ends the environments and their processes."""
        self.envs.close()

    @property
    def _state(self) -> TrainState:
        """The agent's state on one device, for acting."""
        return self._spread.first_copy(self._learner.agent)
