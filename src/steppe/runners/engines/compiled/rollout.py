"""Acting in compiled environments: N environments, T timesteps, one scan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from steppe.agents._base import ActorParams, Agent, Internals, Trajectory
from steppe.envs._base import CompiledEnv
from steppe.runners.engines.compiled.packing import Packing
from steppe.runners.engines.learning import per_step_rewards


class Envs(NamedTuple):
    """N environments in the middle of their episodes."""

    states: Any
    """Leaves [N, ...]."""
    returns: Array
    """Undiscounted returns of the current episodes [N]."""
    running_returns: Array
    """Discounted returns, for reward normalisation [N]."""
    lengths: Array
    """Timesteps of the current episodes [N]."""
    internals: Internals
    """The actor's recurrent state; leaves [N, ...]."""
    keys: Array
    """One key for each device [shards]."""


class Finished(NamedTuple):
    """The ends of episodes, with their returns and lengths; leaves [T, N]."""

    ended: Array
    returns: Array
    lengths: Array


class Rollout:
    """Steps compiled environments with an agent's policy."""

    def __init__(self, agent: Agent[Any], env: CompiledEnv, max_timesteps: int | None) -> None:
        self.agent = agent
        self.env = env
        self.max_timesteps = max_timesteps
        self.preprocess = per_step_rewards(agent)

    def with_agent(self, agent: Agent[Any]) -> Rollout:
        """The same environments for another agent."""
        return Rollout(agent, self.env, self.max_timesteps)

    def begin(self, key: Array, num_envs: int, shards: int) -> Envs:
        """All environments at the start of an episode."""
        reset_key, key = jax.random.split(key)
        zeros, counts = jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32)
        states = jax.vmap(self.env.reset)(jax.random.split(reset_key, num_envs))
        internals = self._initial_internals(num_envs)
        return Envs(states, zeros, zeros, counts, internals, jax.random.split(key, shards))

    def collect(self, envs: Envs, acting: ActorParams, timestep: Array) -> tuple[Envs, Trajectory, Finished]:
        """Acts for `agent.horizon` timesteps in every environment, from `timestep` on."""
        num_envs, horizon = envs.lengths.shape[0], self.agent.horizon
        reset_key, noise_key, key = jax.random.split(envs.keys[0], 3)
        # All randomness and all initial states are drawn before the loop: inside it they would cost more than the
        # environment and the network together.
        fresh = jax.vmap(jax.vmap(self.env.reset))(jax.random.split(reset_key, (horizon, num_envs)))
        is_greedy = self.agent.context.deterministic and not self.agent.always_draws
        noise = None if is_greedy else self.agent.draw_noise(noise_key, (horizon, num_envs))
        # Counts the environments of all devices, even if this one has only some of them.
        timesteps = timestep + self.agent.context.num_envs * jnp.arange(horizon)
        initial = self._initial_internals(num_envs)
        acting = self.agent.unflattened(acting)
        packing = Packing(envs)

        def step(packed: Any, at: tuple[Any, Any, Array]) -> tuple[Any, tuple[Trajectory, Array, Array]]:
            envs: Envs = packing.unpack(packed)
            fresh, noise, timestep = at
            observations = self._observe(envs.states)
            actions, outputs, internals = self.agent.act(acting, observations, noise, timestep, envs.internals)
            states, rewards, terminated = self._step(envs.states, self.agent.to_environment(actions))
            lengths = envs.lengths + 1
            truncated = self._is_over_time(lengths) & ~terminated
            ended = terminated | truncated
            returns = envs.returns + rewards
            learned = rewards if self.preprocess is None else self.preprocess(rewards, jnp)
            running_returns = self.agent.discount * envs.running_returns + learned
            trajectory = Trajectory(
                observations,
                actions,
                learned,
                terminated,
                truncated,
                self._observe(states),
                outputs,
                running_returns,
                envs.internals,
                internals,
            )
            going = envs._replace(
                states=jax.tree.map(lambda new, old: _where(ended, new, old), fresh, states),
                returns=jnp.where(ended, 0.0, returns),
                running_returns=jnp.where(ended, 0.0, running_returns),
                lengths=jnp.where(ended, 0, lengths),
                internals=jax.tree.map(lambda new, old: _where(ended, new, old), initial, internals),
            )
            return packing.pack(going), (trajectory, returns, lengths)

        packed, (trajectory, returns, lengths) = jax.lax.scan(step, packing.pack(envs), (fresh, noise, timesteps))
        finished = Finished(trajectory.terminated | trajectory.truncated, returns, lengths)
        return packing.unpack(packed)._replace(keys=key[None]), trajectory, finished

    def compiled_play(self) -> Callable[..., tuple[Array, Array]]:
        """`play` as a compiled program that takes the agent's numbers as arguments."""

        def play(numbers: dict[str, Any], *arguments: Any) -> tuple[Array, Array]:
            return self.with_agent(self.agent.with_numbers(numbers)).play(*arguments)

        return partial(jax.jit(play, static_argnums=(3, 4)), self.agent.numbers)

    def play(
        self, acting: ActorParams, key: Array, episodes: int, greedy: bool, timestep: Array
    ) -> tuple[Array, Array]:
        """Returns and lengths [episodes] of one episode in each of `episodes` environments."""
        reset_key, key = jax.random.split(key)
        envs = self.begin(reset_key, episodes, 1)

        def is_going(carry: tuple[Envs, Array, Array]) -> Array:
            return jnp.any(~carry[1])

        def step(carry: tuple[Envs, Array, Array]) -> tuple[Envs, Array, Array]:
            envs, over, key = carry
            noise_key, key = jax.random.split(key)
            noise = None if greedy and not self.agent.always_draws else self.agent.draw_noise(noise_key, (episodes,))
            observations = self._observe(envs.states)
            actions, _, internals = self.agent.act(acting, observations, noise, timestep, envs.internals)
            states, rewards, terminated = self._step(envs.states, self.agent.to_environment(actions))
            returns = envs.returns + jnp.where(over, 0.0, rewards)
            lengths = envs.lengths + ~over
            ended = over | terminated | self._is_over_time(lengths)
            return envs._replace(states=states, returns=returns, lengths=lengths, internals=internals), ended, key

        envs, _, _ = jax.lax.while_loop(is_going, step, (envs, jnp.zeros(episodes, bool), key))
        return envs.returns, envs.lengths

    def _initial_internals(self, num_envs: int) -> Internals:
        return jax.tree.map(jnp.asarray, self.agent.initial_internals((num_envs,)))

    def _observe(self, states: Any) -> Array:
        return jax.vmap(self.env.observe)(states)

    def _step(self, states: Any, actions: Array) -> tuple[Any, Array, Array]:
        """(states, rewards, terminated) after the actions."""
        return jax.vmap(self.env.step)(states, actions)

    def _is_over_time(self, lengths: Array) -> Array:
        limits = [limit for limit in (self.max_timesteps, self.env.max_episode_steps) if limit is not None]
        return lengths >= min(limits) if limits else jnp.zeros(lengths.shape, bool)


def _where(condition: Array, yes: Array, no: Array) -> Array:
    """Chooses per environment [N] between leaves [N, ...]."""
    return jnp.where(condition.reshape(condition.shape + (1,) * (no.ndim - condition.ndim)), yes, no)
