"""Rollouts of host environments, acting in NumPy or by a compiled call, into the same buffers each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steppe.agents._base import Agent, Internals, TrainState, Trajectory
from steppe.envs._base import EpisodesCut
from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.policies import heads
from steppe.policies.policy import Policy
from steppe.runners.compilation import jit_for_few
from steppe.runners.engines.episode_collector import EpisodeCollector
from steppe.runners.engines.learning import LARGEST_TIMESTEP, per_step_rewards
from steppe.specs.spaces import Box, Space

SLOW_IN_NUMPY = {"conv1d", "conv2d", "pool2d", "custom"}
"""Layers for which a compiled forward pass is faster in spite of its dispatch."""


@dataclass
class CollectedRollout:
    """One rollout; the next one reuses its arrays."""

    trajectory: Trajectory
    timesteps: int = 0
    """The number of timesteps, of all environments together."""
    returns: list[float] = field(default_factory=list)
    """The returns of the episodes that ended."""
    lengths: list[int] = field(default_factory=list)
    is_cut_off: bool = False
    """Whether the episodes of the previous rollout were lost, so that this one does not continue them."""


class RolloutCollector(EpisodeCollector):
    """Steps environments with an agent's policy and keeps track of their episodes."""

    def __init__(self, agent: Agent[Any], envs: GymnasiumEnvs, state: TrainState, rng: np.random.Generator) -> None:
        super().__init__(envs, rng)
        self.agent = agent
        self._preprocess = per_step_rewards(agent)
        self._actor = agent.actor(state)
        network = self._actor.description.network
        layers = {layer.type for layer in network.root} if network else set()
        is_compiled = bool(layers & SLOW_IN_NUMPY) or not agent.acts_in_numpy
        has_values = is_compiled and agent.values_while_acting
        self._act: Any = None
        self._acting: Any = agent.actor_params
        if is_compiled:
            self._act = partial(jit_for_few(partial(_act, agent, has_values)), agent.numbers)
            self._acting = jax.jit(lambda state: agent.unflattened(agent.actor_params(state)))
        elif agent.perturbs_parameters:
            # A compiled call copies all parameters, so it is only used if it computes something.
            self._acting = jax.jit(agent.actor_params)
        self._buffers = _allocate(agent, self._actor, agent.context.observation, agent.context.action)
        if has_values:
            self._buffers = self._buffers._replace(values=np.zeros_like(self._buffers.rewards))

    def start(self, seed: int) -> None:
        """Starts new episodes everywhere."""
        self.begin_episodes(self.envs.reset(seed))

    def initial_state(self) -> Internals:
        """The agent's initial recurrent state."""
        return self.agent.initial_internals((self.envs.num_envs,))

    def collect(self, state: TrainState, timestep: int) -> CollectedRollout:
        """A rollout with the policy of a state."""
        agent, envs, buffers = self.agent, self.envs, self._buffers
        num_envs, collected = envs.num_envs, CollectedRollout(buffers)
        discount = agent.discount
        is_greedy = agent.context.deterministic and not agent.always_draws
        acting = self._acting(state)
        if self._act is None:
            self._actor.replace(agent.policy_tensors(state._replace(params=acting.params)))
        noise = heads.draw_noise(agent.noise, (agent.horizon, num_envs), self.rng)
        enough = agent.rollout_episodes
        t = 0
        while t < agent.horizon and (enough is None or len(collected.returns) < enough):
            observations = self._observations
            drawn = None if is_greedy else noise[t]
            internals = self._state
            now = timestep + t * num_envs
            if self._act is None:
                actions, outputs, following = self._act_in_numpy(observations, drawn, now, internals)
            else:
                results = self._act(acting, observations, drawn, jnp.int32(min(now, LARGEST_TIMESTEP)), internals)
                actions, outputs, following, *values = jax.tree.map(np.asarray, results)
                for worth in values:
                    buffers.values[t] = worth
            # Before the step: an environment may hand out the same array again.
            buffers.observations[t] = observations
            try:
                step = envs.step(agent.to_env_actions(actions))
            except EpisodesCut as cut:
                self.cut_episodes(buffers, t, cut.observations)
                collected.is_cut_off |= t == 0
                continue
            rewards = step.rewards if self._preprocess is None else self._preprocess(step.rewards)
            self.count(step, rewards, discount)
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
            self.finish_step(step, following, collected.returns, collected.lengths)
            t += 1
        if enough is not None:
            _repeat(buffers, t)
        collected.timesteps = t * num_envs
        return collected

    def _act_in_numpy(
        self, observations: np.ndarray, noise: np.ndarray | None, timestep: int, internals: Internals
    ) -> tuple[np.ndarray, np.ndarray, Internals]:
        """The same as `agent.act` in NumPy: a compiled call costs more than the forward pass of a small network."""
        actor = self._actor
        outputs, internals = actor.outputs_after(observations, internals)
        log_std = actor.tensors.get("head/log_std", 0.0)
        actions, internals = self.agent.choose(outputs, noise, timestep, internals, log_std, np)
        return actions, outputs, internals


def _act(agent: Agent[Any], has_values: bool, numbers: dict[str, Any], *arguments: Any) -> tuple[Any, ...]:
    agent = agent.with_numbers(numbers)
    return agent.act_and_value(*arguments) if has_values else agent.act(*arguments)


def _allocate(agent: Agent[Any], actor: Policy, observation: Space, action: Space) -> Trajectory:
    """Arrays for one rollout [T, N, ...]."""
    lead = (agent.horizon, agent.context.num_envs)
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
        weights=() if agent.rollout_episodes is None else np.ones(lead, np.float32),
    )


def _repeat(buffers: Trajectory, length: int) -> None:
    """Fills a rollout that ended early with copies of itself, so that minibatches of it are full.

    All episodes are cut at the end of each copy, so that the copies do not influence each other. An incomplete last
    copy has weight 0, so that all timesteps count alike.
    """
    buffers.truncated[length - 1] |= ~buffers.terminated[length - 1]
    for leaf in jax.tree.leaves(buffers):
        for start in range(length, len(leaf), length):
            leaf[start : start + length] = leaf[: min(length, len(leaf) - start)]
    horizon = len(buffers.rewards)
    whole = horizon // length * length
    buffers.weights[:whole] = horizon / whole
    buffers.weights[whole:] = 0.0


def _room(agent: Agent[Any], lead: tuple[int, int]) -> Internals:
    """Arrays for the recurrent state [T, N, ...]."""
    one = agent.initial_internals(lead[1:])
    return {name: np.zeros((lead[0], *value.shape), value.dtype) for name, value in one.items()}
