"""Acting in compiled environments against a loop in plain Python."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe import agents
from steppe.agents._base import AgentContext
from steppe.envs._base import CompiledEnv
from steppe.envs.compiled.repeated import Repeated
from steppe.runners.engines.compiled.rollout import Rollout
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete

NETWORK = NetworkSpec([{"type": "dense", "size": 4, "activation": "tanh"}])


class Count(NamedTuple):
    at: jax.Array
    start: jax.Array


class Counter(CompiledEnv):
    """Counts up by one, or by two with action 1; the reward is the new count; terminates at `end`."""

    id: ClassVar[str] = "Counter-v0"
    end: int | None = None
    starts: int = 1
    """The number of counts at which episodes may start."""

    @property
    def observation_space(self):
        return Box((2,))

    @property
    def action_space(self):
        return Discrete(2)

    def reset(self, key):
        start = jax.random.randint(key, (), 0, self.starts)
        return Count(start, start)

    def step(self, state, action):
        at = state.at + 1 + action
        terminated = jnp.bool_(False) if self.end is None else at >= self.end
        return Count(at, state.start), at.astype(jnp.float32), terminated

    def observe(self, state):
        return jnp.stack([state.at, state.start]).astype(jnp.float32)


def rollout_of(env, agent="random", repeat_actions=1, max_timesteps=None, envs=3, situation=(), **settings):
    network = {"network": NETWORK} if agent not in ("random", "constant") else {}
    where = AgentContext(env.observation_space, env.action_space, num_envs=envs, **network, **dict(situation))
    made = agents.make(AgentSpec.model_validate({"type": agent, "horizon": 7, **settings}), where)
    if repeat_actions > 1:
        env = Repeated(inner=env, times=repeat_actions, max_episode_steps=env.max_episode_steps)
    return Rollout(made, env, max_timesteps)


def collected(rollout, calls=3, seed=0):
    """(envs at the start, trajectories and finished episodes of all calls, concatenated to [calls * T, N, ...])."""
    agent = rollout.agent
    acting = agent.actor_params(agent.init(jax.random.key(seed)))
    collect = jax.jit(rollout.collect)
    start = envs = rollout.begin(jax.random.key(seed), agent.context.num_envs, 1)
    parts = []
    for call in range(calls):
        envs, trajectory, finished = collect(envs, acting, call * agent.horizon * agent.context.num_envs)
        parts.append((trajectory, finished))
    trajectory, finished = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(x) for x in leaves]), *parts)
    return jax.tree.map(np.asarray, start.states), trajectory, finished


def check_by_hand(rollout, start, trajectory, finished):
    """Plays the recorded actions in Python, environment by environment, and compares every number."""
    env, discount = rollout.env, getattr(rollout.agent.settings, "discount", 1.0)
    times, env = getattr(env, "times", 1), getattr(env, "inner", env)
    for n in range(trajectory.rewards.shape[1]):
        at, first = int(start.at[n]), int(start.start[n])
        length, total, running = 0, 0.0, 0.0
        for t in range(len(trajectory.rewards)):
            assert trajectory.observations[t, n].tolist() == [at, first]
            reward, terminated = 0.0, False
            for _ in range(times):
                at += 1 + int(trajectory.actions[t, n])
                reward += at
                terminated = env.end is not None and at >= env.end
                if terminated:
                    break
            length += 1
            total += reward
            running = discount * running + reward
            truncated = not terminated and length in (env.max_episode_steps, rollout.max_timesteps)
            assert trajectory.rewards[t, n] == reward
            assert trajectory.terminated[t, n] == terminated
            assert trajectory.truncated[t, n] == truncated
            assert trajectory.next_observations[t, n].tolist() == [at, first]
            assert trajectory.running_returns[t, n] == pytest.approx(running, rel=1e-4)
            assert finished.ended[t, n] == (terminated or truncated)
            if terminated or truncated:
                assert finished.returns[t, n] == total
                assert finished.lengths[t, n] == length
                length, total, running = 0, 0.0, 0.0
                if t + 1 < len(trajectory.rewards):
                    at = first = int(trajectory.observations[t + 1, n, 1])
                    assert 0 <= first < env.starts


@pytest.mark.parametrize(
    ("env", "repeat_actions", "max_timesteps"),
    [
        (Counter(), 1, None),
        (Counter(end=9), 1, None),
        (Counter(max_episode_steps=5), 1, None),
        (Counter(), 1, 4),
        (Counter(end=8, max_episode_steps=6), 1, 5),
        (Counter(max_episode_steps=4), 1, 6),
        (Counter(end=11), 3, None),
        (Counter(max_episode_steps=7), 3, None),
        (Counter(end=11, max_episode_steps=7), 2, 3),
        (Counter(end=12, starts=5), 1, None),
        (Counter(end=12, starts=5, max_episode_steps=9), 2, 4),
    ],
    ids=str,
)
def test_a_rollout_agrees_with_a_loop_in_python(env, repeat_actions, max_timesteps):
    rollout = rollout_of(env, repeat_actions=repeat_actions, max_timesteps=max_timesteps)
    start, trajectory, finished = collected(rollout)
    assert set(np.unique(trajectory.actions)) == {0, 1}
    check_by_hand(rollout, start, trajectory, finished)


def test_running_returns_are_discounted_as_the_agent_says():
    rollout = rollout_of(Counter(end=20), agent="vpg", discount=0.5)
    start, trajectory, finished = collected(rollout)
    assert finished.ended.any()
    check_by_hand(rollout, start, trajectory, finished)


def test_an_episode_that_ends_for_good_at_its_last_timestep_is_not_truncated():
    rollout = rollout_of(Counter(end=4, max_episode_steps=4), agent="constant", action=0)
    _, trajectory, finished = collected(rollout, calls=1)
    assert trajectory.terminated[3].all()
    assert not trajectory.truncated.any()
    assert finished.lengths[3].tolist() == [4, 4, 4]
    assert finished.returns[3].tolist() == [10.0, 10.0, 10.0]


def test_repeated_actions_sum_rewards_and_stop_at_the_end_of_the_episode():
    rollout = rollout_of(Counter(end=5), agent="constant", action=0, repeat_actions=3)
    _, trajectory, finished = collected(rollout, calls=1)
    assert trajectory.rewards[:4, 0].tolist() == [1 + 2 + 3, 4 + 5, 1 + 2 + 3, 4 + 5]
    assert trajectory.next_observations[:4, 0, 0].tolist() == [3, 5, 3, 5]
    assert finished.lengths[1, 0] == 2


def test_limits_count_the_timesteps_of_the_agent_however_often_actions_are_repeated():
    own = rollout_of(Counter(max_episode_steps=3), agent="constant", action=0, repeat_actions=2)
    assert collected(own, calls=1)[2].ended[:, 0].nonzero()[0].tolist() == [2, 5]
    experiments = rollout_of(Counter(), agent="constant", action=0, repeat_actions=2, max_timesteps=2)
    assert collected(experiments, calls=1)[2].ended[:, 0].nonzero()[0].tolist() == [1, 3, 5]


def test_every_episode_starts_with_its_own_randomness():
    rollout = rollout_of(Counter(starts=1000, max_episode_steps=1), envs=4)
    _, trajectory, _ = collected(rollout, calls=4)
    starts = trajectory.observations[..., 1]
    assert len(np.unique(starts)) > 0.9 * starts.size


def test_the_same_key_gives_the_same_rollout_and_another_another():
    rollout = rollout_of(Counter(end=12, starts=5))
    first, again, other = (collected(rollout, seed=seed)[1] for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert np.any(first.actions != other.actions)


def test_outputs_are_those_that_the_policy_puts_out_for_the_observations():
    rollout = rollout_of(Counter(end=12), agent="vpg")
    _, trajectory, _ = collected(rollout)
    policy = rollout.agent.policy(rollout.agent.init(jax.random.key(0)), 0)
    outputs = policy.outputs(trajectory.observations.reshape(-1, 2))
    np.testing.assert_allclose(trajectory.outputs.reshape(-1, 2), outputs, rtol=1e-4, atol=1e-5)


def test_a_deterministic_experiment_takes_the_best_actions():
    rollout = rollout_of(Counter(end=12), agent="vpg", situation={"deterministic": True})
    _, trajectory, _ = collected(rollout)
    np.testing.assert_array_equal(trajectory.actions, trajectory.outputs.argmax(-1))


def played(rollout, episodes, greedy=True, seed=0):
    agent = rollout.agent
    acting = agent.actor_params(agent.init(jax.random.key(seed)))
    play = jax.jit(rollout.play, static_argnums=(2, 3))
    returns, lengths = play(acting, jax.random.key(seed), episodes, greedy, jnp.int32(0))
    return np.asarray(returns), np.asarray(lengths)


@pytest.mark.parametrize(
    ("env", "repeat_actions", "max_timesteps", "expected_return", "expected_length"),
    [
        (Counter(end=5), 1, None, 15, 5),
        (Counter(max_episode_steps=4), 1, None, 10, 4),
        (Counter(end=100), 1, 3, 6, 3),
        (Counter(end=5), 2, None, 15, 3),
        (Counter(max_episode_steps=2), 3, None, 21, 2),
    ],
    ids=str,
)
def test_played_episodes_have_their_returns_and_lengths(
    env, repeat_actions, max_timesteps, expected_return, expected_length
):
    rollout = rollout_of(env, "constant", repeat_actions, max_timesteps, action=0)
    returns, lengths = played(rollout, 4)
    assert returns.tolist() == [expected_return] * 4
    assert lengths.tolist() == [expected_length] * 4


def test_episodes_that_end_early_wait_for_the_others_without_counting():
    rollout = rollout_of(Counter(end=9, starts=8), "constant", action=0)
    returns, lengths = played(rollout, 32)
    assert len(set(lengths.tolist())) > 3
    # From its start an episode counts start + 1, ..., 9.
    starts = 9 - lengths
    np.testing.assert_array_equal(returns, 45 - starts * (starts + 1) / 2)


def test_playing_can_draw_actions_or_take_the_best():
    rollout = rollout_of(Counter(end=200), "vpg")
    greedy, _ = played(rollout, 8)
    drawn, _ = played(rollout, 8, greedy=False)
    assert len(set(greedy.tolist())) == 1
    assert len(set(drawn.tolist())) > 1
