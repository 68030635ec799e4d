"""The host engine: gymnasium environments stepped in NumPy, learning in one compiled call for each rollout."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents._base import Agent, Internals, Metrics, Trajectory
from steppe.envs.host import HostEnvs
from steppe.envs.interruption import EpisodesCut
from steppe.errors import EnvironmentFault
from steppe.records import heads
from steppe.records.policy import Policy
from steppe.runners._base import Chunk, Limits
from steppe.runners.arrays import from_arrays, to_arrays
from steppe.runners.episodes import WINDOW
from steppe.runners.learning import Learner, begin, each_reward, is_healthy, learn
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box, Space

SLOW_IN_NUMPY = {"conv1d", "conv2d", "pool2d", "custom"}
"""Layers for which a compiled forward pass is worth its dispatch."""


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
        self._environment = environment
        self._episode_rules = (max_timesteps, repeat_actions)
        self.timesteps_per_iteration = agent.horizon * envs.num_envs
        self._preprocess = each_reward(agent)
        self._learn = jax.jit(self._learned, donate_argnums=0)
        self._metric_names: list[str] = []
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._lengths: deque[int] = deque(maxlen=WINDOW)

    def begin(self, seed: int) -> None:
        """Fresh parameters and fresh episodes."""
        self._learner = begin(self.agent, jax.random.key(seed))
        self._rng = np.random.default_rng(seed)
        self._start_episodes(seed)

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Everything but the environments, which start new episodes."""
        arrays = dict(arrays)
        self._rng = np.random.default_rng()
        self._rng.bit_generator.state = json.loads(arrays.pop("host/rng").tobytes())
        self._returns.extend(arrays.pop("host/returns").tolist())
        self._lengths.extend(arrays.pop("host/lengths").tolist())
        template = begin(self.agent, jax.random.key(seed), pretrains=False)
        self._learner = from_arrays(template, arrays)
        self._start_episodes(int(self._rng.integers(2**31)))

    def snapshot(self) -> dict[str, np.ndarray]:
        """Agent, memory, randomness and the window of episodes."""
        return to_arrays(self._learner) | {
            "host/rng": np.frombuffer(json.dumps(self._rng.bit_generator.state).encode(), np.uint8),
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
                trajectory, taken, ended = self._collect(timestep)
            except EnvironmentFault as error:
                fault = error
                break
            self._learner, values = self._learn(self._learner, trajectory)
            metrics = dict(zip(self._metric_names, np.asarray(values).tolist(), strict=True))
            healthy = bool(metrics.pop("is_healthy"))
            counts = {"timesteps": taken, "episodes": ended}
            rows.append(counts | {"mean_return": _mean(self._returns), "mean_length": _mean(self._lengths)} | metrics)
            timestep += taken
            finished += ended
            is_full = len(self._returns) == WINDOW
            reached = limits.stop_at_return is not None and is_full and _mean(self._returns) >= limits.stop_at_return
        columns = {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}
        return Chunk(len(rows), columns, reached, healthy, fault)

    def evaluate(self, episodes: int, greedy: bool, seed: int) -> tuple[float, float]:
        """Plays in environments of its own, several at once."""
        policy = self.policy(0)
        rng = np.random.default_rng(seed)
        width = min(episodes, self.envs.num_envs)
        returns, lengths = np.zeros(width), np.zeros(width, int)
        done: list[tuple[float, int]] = []
        # Each environment plays its share, so that quick failures are not over-represented.
        shares = [len(range(i, episodes, width)) for i in range(width)]
        with HostEnvs(self._environment, width, *self._episode_rules) as envs:
            observations = envs.reset(seed)
            while any(shares):
                actions = policy.act(observations, deterministic=greedy, rng=rng) - _start(self.agent.situation.action)
                try:
                    step = envs.step(actions)
                except EpisodesCut as cut:
                    # Half an episode says nothing; it is played again.
                    returns[:], lengths[:], observations = 0.0, 0, cut.observations
                    policy.reset()
                    continue
                returns += step.scores
                lengths += 1
                for i in np.flatnonzero(step.finished):
                    if shares[i]:
                        shares[i] -= 1
                        done.append((returns[i], lengths[i]))
                    returns[i], lengths[i] = 0.0, 0
                if policy.is_recurrent:
                    policy.reset(step.terminated | step.truncated)
                observations = step.observations
        return float(np.mean([each[0] for each in done])), float(np.mean([each[1] for each in done]))

    def policy(self, timestep: int) -> Policy:
        """The policy as of the last update."""
        return self.agent.policy(self._learner.agent, timestep)

    def close(self) -> None:
        """Ends the environments and their processes."""
        self.envs.close()

    def _start_episodes(self, seed: int) -> None:
        situation, envs = self.agent.situation, self.envs.num_envs
        self._observations = self.envs.reset(seed)
        self._episode_returns = np.zeros(envs)
        self._episode_lengths = np.zeros(envs, np.int64)
        self._running_returns = np.zeros(envs, np.float32)
        self._actor = self.agent.actor(self._learner.agent)
        layers = (
            {layer.type for layer in self._actor.description.network.root} if self._actor.description.network else set()
        )
        is_compiled = bool(layers & SLOW_IN_NUMPY) or not self.agent.acts_in_numpy
        self._act = jax.jit(self.agent.act) if is_compiled else None
        self._internals = self.agent.initial_internals((envs,))
        self._buffers = _allocate(self.agent, self._actor, situation.observation, situation.action)

    def _collect(self, timestep: int) -> tuple[Trajectory, int, int]:
        """A rollout, in the same buffers each time; how many timesteps were taken and how many episodes ended."""
        agent, envs, buffers = self.agent, self.envs, self._buffers
        num_envs, finished = envs.num_envs, 0
        discount = getattr(agent.settings, "discount", 1.0)
        is_greedy = agent.situation.deterministic and not agent.always_draws
        acting = agent.acting(self._learner.agent)
        if self._act is None:
            self._actor.replace(agent.policy_tensors(self._learner.agent._replace(params=acting.params)))
        noise = heads.draw_noise(agent.noise, (agent.horizon, num_envs), self._rng)
        enough = agent.rollout_episodes
        t = 0
        while t < agent.horizon and (enough is None or finished < enough):
            observations = self._observations
            drawn = None if is_greedy else noise[t]
            internals = self._internals
            now = timestep + t * num_envs
            if self._act is None:
                actions, outputs, following = self._act_in_numpy(observations, drawn, now, internals)
            else:
                results = self._act(acting, observations, drawn, jnp.int32(now), internals)
                actions, outputs, following = jax.tree.map(np.asarray, results)
            # Before the step: an environment may hand out the same array again.
            buffers.observations[t] = observations
            try:
                step = envs.step(agent.to_host(actions))
            except EpisodesCut as cut:
                self._cut(t, cut.observations)
                continue
            self._episode_returns += step.scores
            self._episode_lengths += 1
            rewards = step.rewards if self._preprocess is None else self._preprocess(step.rewards)
            self._running_returns *= discount
            self._running_returns += rewards
            buffers.actions[t] = actions
            buffers.outputs[t] = outputs
            buffers.rewards[t] = rewards
            buffers.terminated[t] = step.terminated
            buffers.truncated[t] = step.truncated
            buffers.next_observations[t] = step.next_observations
            buffers.running_returns[t] = self._running_returns
            for name, value in internals.items():
                buffers.internals[name][t] = value
                buffers.next_internals[name][t] = following[name]
            ended = step.terminated | step.truncated
            if ended.any():
                for i in np.flatnonzero(step.finished):
                    self._returns.append(float(self._episode_returns[i]))
                    self._lengths.append(int(self._episode_lengths[i]))
                    finished += 1
                self._episode_returns[step.finished] = 0.0
                self._episode_lengths[step.finished] = 0
                self._running_returns[ended] = 0.0
                following = self._restarted(following, ended)
            self._internals = following
            self._observations = step.observations
            t += 1
        if t < agent.horizon:
            _repeat(buffers, t)
        return buffers, t * num_envs, finished

    def _cut(self, t: int, observations: np.ndarray) -> None:
        """All episodes have started anew before timestep t, which was not taken: the one before was their last."""
        if t:
            self._buffers.truncated[t - 1] |= ~self._buffers.terminated[t - 1]
        elif self.agent.experience == "transitions":
            memory = self.agent.memory.cut(self._learner.memory)  # type: ignore[attr-defined]
            self._learner = self._learner._replace(memory=memory)
        self._episode_returns[:] = 0.0
        self._episode_lengths[:] = 0
        self._running_returns[:] = 0.0
        self._internals = self.agent.initial_internals((self.envs.num_envs,))
        self._observations = observations

    def _act_in_numpy(
        self, observations: np.ndarray, noise: np.ndarray | None, timestep: int, internals: Internals
    ) -> tuple[np.ndarray, np.ndarray, Internals]:
        """The same as `agent.act`, without a dispatch: for a small network that costs more than the forward pass."""
        actor = self._actor
        outputs, internals = actor.outputs_after(observations, internals)
        log_std = actor.tensors.get("head/log_std", 0.0)
        actions, internals = self.agent.choose(outputs, noise, timestep, internals, log_std, np)
        return actions, outputs, internals

    def _restarted(self, internals: Internals, ended: np.ndarray) -> Internals:
        """What is remembered where an episode ended is forgotten."""
        initial = self.agent.initial_internals((self.envs.num_envs,))
        return {
            name: np.where(ended.reshape(-1, *(1,) * (value.ndim - 1)), initial[name], value)
            for name, value in internals.items()
        }

    def _learned(self, learner: Learner, trajectory: Trajectory) -> tuple[Learner, Array]:
        """`learn` with all metrics in one vector, so that one transfer brings them."""
        metrics: Metrics
        learner, metrics = learn(self.agent, learner, trajectory)
        metrics["is_healthy"] = is_healthy(learner, metrics)
        self._metric_names = list(metrics)
        return learner, jnp.stack([jnp.float32(value) for value in metrics.values()])


def _allocate(agent: Agent[Any], actor: Policy, observation: Space, action: Space) -> Trajectory:
    """Room for one rollout, [T, N, ...]."""
    lead = (agent.horizon, agent.situation.num_envs)
    outputs = heads.outputs_size(actor.kind, action)
    action_shape = (action.size,) if isinstance(action, Box) else action.shape

    def observations() -> np.ndarray:
        dtype = observation.dtype if observation.dtype in ("uint8", "int32") else np.float32
        return np.zeros((*lead, *observation.shape), dtype)

    return Trajectory(
        observations=observations(),
        actions=np.zeros((*lead, *action_shape), np.float32 if isinstance(action, Box) else np.int32),
        rewards=np.zeros(lead, np.float32),
        terminated=np.zeros(lead, bool),
        truncated=np.zeros(lead, bool),
        next_observations=observations(),
        outputs=np.zeros((*lead, outputs), np.float32),
        running_returns=np.zeros(lead, np.float32),
        internals=_room(agent, lead),
        next_internals=_room(agent, lead),
    )


def _repeat(buffers: Trajectory, length: int) -> None:
    """Fills a rollout that ended early with copies of itself, so that all its timesteps count alike.

    Nothing flows from one copy into another, since all episodes are cut where the rollout ended.
    """
    buffers.truncated[length - 1] |= ~buffers.terminated[length - 1]
    for leaf in jax.tree.leaves(buffers):
        for start in range(length, len(leaf), length):
            leaf[start : start + length] = leaf[: min(length, len(leaf) - start)]


def _room(agent: Agent[Any], lead: tuple[int, int]) -> Internals:
    """For what the actor remembers, [T, N, ...]."""
    one = agent.initial_internals(lead[1:])
    return {name: np.zeros((lead[0], *value.shape), value.dtype) for name, value in one.items()}


def _start(space: Space) -> int:
    return getattr(space, "start", 0)


def _mean(values: deque[Any]) -> float:
    return float(np.mean(values)) if values else float("nan")
