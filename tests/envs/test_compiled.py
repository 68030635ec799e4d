"""Every compiled environment against gymnasium's, step by step from the same state."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.envs.compiled.acrobot import AcrobotState
from steppe.envs.compiled.cartpole import CartPoleState
from steppe.envs.compiled.mountain_car import MountainCarState
from steppe.envs.compiled.pendulum import PendulumState
from steppe.envs.registry import make_compiled
from steppe.envs.spaces import action_crossing, observation_crossing
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box

pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")

STATES = {
    "CartPole-v0": (CartPoleState, [2.5, 3.0, 0.22, 3.0]),
    "CartPole-v1": (CartPoleState, [2.5, 3.0, 0.22, 3.0]),
    "Acrobot-v1": (AcrobotState, [np.pi, np.pi, 4 * np.pi, 9 * np.pi]),
    "MountainCar-v0": (MountainCarState, [0.9, 0.07]),
    "MountainCarContinuous-v0": (MountainCarState, [0.9, 0.07]),
    "Pendulum-v1": (PendulumState, [np.pi, 8.0]),
}
IDS = list(STATES)
TRANSITIONS = 3000


def compiled_of(id: str, **settings):
    return make_compiled(EnvironmentSpec(id=id, settings=settings))


def original_of(id: str, **settings) -> gymnasium.Env:
    return gymnasium.make(id, disable_env_checker=True, **settings)


def random_states(id: str, rng: np.random.Generator) -> np.ndarray:
    """Float32 [TRANSITIONS, size], over all that can occur: a third of them as `reset` and random play find them."""
    bounds = np.array(STATES[id][1])
    states = rng.uniform(-bounds, bounds, (TRANSITIONS, len(bounds)))
    if id.startswith("MountainCar"):
        states[:, 0] = rng.uniform(-1.2, 0.6, TRANSITIONS)
        states[:100, 0] = -1.2  # at the left wall
        states[100:200, 0] = rng.uniform(0.4, 0.6, 100)  # at the goal
    states[-TRANSITIONS // 3 :] *= 0.1 if not id.startswith("MountainCar") else 1.0
    return states.astype(np.float32)


def random_actions(env: gymnasium.Env, rng: np.random.Generator, count: int) -> np.ndarray:
    space = env.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(0, space.n, count)
    # Also beyond the bounds, which both sides must treat alike.
    return rng.uniform(1.2 * space.low, 1.2 * space.high, (count, 1)).astype(np.float32)


def is_far_from_the_line(id: str, state: np.ndarray) -> bool:
    """Whether float32 rounding cannot change whether the state is final."""
    if id.startswith("CartPole"):
        margins = [abs(abs(state[0]) - 2.4), abs(abs(state[2]) - 12 * 2 * np.pi / 360)]
    elif id == "Acrobot-v1":
        margins = [abs(-np.cos(state[0]) - np.cos(state[0] + state[1]) - 1.0)]
    elif id.startswith("MountainCar"):
        goal = 0.45 if "Continuous" in id else 0.5
        margins = [abs(state[0] - goal), abs(state[1])]
        margins = margins[:1] if state[1] == 0 else margins
    else:
        return True
    return min(margins) > 1e-4


@pytest.mark.parametrize("id", IDS)
def test_thousands_of_random_transitions_equal_those_of_gymnasium(id: str) -> None:
    rng = np.random.default_rng(3)
    compiled, original = compiled_of(id), original_of(id)
    env = original.unwrapped
    env.reset(seed=0)
    make_state, _ = STATES[id]
    states, actions = random_states(id, rng), random_actions(env, rng, TRANSITIONS)
    reached, rewards, terminated = jax.vmap(compiled.step)(make_state(*jnp.asarray(states).T), jnp.asarray(actions))
    observations = np.asarray(jax.vmap(compiled.observe)(reached))
    expected: list[tuple] = []
    for i in range(TRANSITIONS):
        env.state = states[i].astype(np.float64)
        if id.startswith("CartPole"):
            env.steps_beyond_terminated = None
        action = int(actions[i]) if actions.ndim == 1 else actions[i]
        obs, reward, is_terminated, _, _ = env.step(action)
        expected.append((obs, reward, is_terminated, is_far_from_the_line(id, np.asarray(env.state, np.float64))))
    their_observations, their_rewards, ended, clear = map(np.array, zip(*expected, strict=True))
    # Angular accelerations of an Acrobot at full speed are in the thousands: the rounding of float32 is relative.
    np.testing.assert_allclose(observations, their_observations, rtol=2e-4, atol=2e-3 if id == "Acrobot-v1" else 2e-5)
    np.testing.assert_array_equal(np.asarray(terminated)[clear], ended[clear])
    np.testing.assert_allclose(np.asarray(rewards)[clear], their_rewards[clear], rtol=1e-5, atol=1e-5)
    assert clear.mean() > 0.9
    assert id == "Pendulum-v1" or 20 < ended[clear].sum() < 0.9 * TRANSITIONS, "the sample must contain both verdicts"
    assert rewards.dtype == jnp.float32
    assert observations.dtype == np.float32


@pytest.mark.parametrize(("id", "steps"), [(id, 40 if id == "Acrobot-v1" else 1000) for id in IDS])
def test_the_same_actions_from_the_same_start_give_the_same_episode(id: str, steps: int) -> None:
    """Acrobot is chaotic, so its two trajectories are followed for a shorter time."""
    rng = np.random.default_rng(5)
    compiled, original = compiled_of(id), original_of(id)
    step, observe = jax.jit(compiled.step), jax.jit(compiled.observe)
    for episode in range(3):
        original.reset(seed=episode)
        state = STATES[id][0](*jnp.asarray(original.unwrapped.state, jnp.float32))
        total = compiled_total = 0.0
        for t, action in enumerate(random_actions(original, rng, steps), 1):
            obs, reward, terminated, truncated, _ = original.step(int(action) if action.ndim == 0 else action)
            state, compiled_reward, compiled_terminated = step(state, jnp.asarray(action))
            total, compiled_total = total + float(reward), compiled_total + float(compiled_reward)
            assert np.abs(observe(state) - obs).max() < 5e-3
            assert bool(compiled_terminated) == terminated
            # The runner truncates at the limit, which must be gymnasium's.
            assert (t >= compiled.max_episode_steps) == truncated
            if terminated or truncated:
                break
        assert terminated or truncated or t == steps
        assert compiled_total == pytest.approx(total, rel=1e-3, abs=1e-2)


@pytest.mark.parametrize("id", ["CartPole-v0", "CartPole-v1"])
def test_a_balanced_pole_lasts_until_gymnasium_truncates_it(id: str) -> None:
    compiled, original = compiled_of(id), original_of(id)
    obs, _ = original.reset(seed=1)
    state = CartPoleState(*jnp.asarray(original.unwrapped.state, jnp.float32))
    step = jax.jit(compiled.step)

    def balance(position, velocity, angle, angular_velocity) -> int:
        return int(angle + 0.3 * angular_velocity + 0.02 * position + 0.05 * velocity > 0)

    for t in range(1, compiled.max_episode_steps + 1):
        # Each side corrects its own pole: an unstable one would magnify the difference of their rounding.
        obs, _, terminated, truncated, _ = original.step(balance(*obs))
        state, _, compiled_terminated = step(state, np.int32(balance(*map(float, state))))
        assert not terminated
        assert not compiled_terminated
        assert truncated == (t == compiled.max_episode_steps)


@pytest.mark.parametrize("id", IDS)
def test_starts_are_distributed_as_those_of_gymnasium(id: str) -> None:
    compiled, original = compiled_of(id), original_of(id)
    states = jax.vmap(compiled.reset)(jax.random.split(jax.random.key(0), 4000))
    ours = np.asarray(jax.vmap(compiled.observe)(states))
    theirs = np.stack([original.reset(seed=seed)[0] for seed in range(2000)])
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.05 * (np.ptp(theirs, axis=0).max()))
    np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), rtol=0.05, atol=1e-6)
    np.testing.assert_allclose(np.ptp(ours, axis=0), np.ptp(theirs, axis=0), rtol=0.05, atol=1e-6)
    assert len(np.unique(ours[:, 0])) > 1000


@pytest.mark.parametrize("id", IDS)
def test_spaces_and_limits_are_those_of_gymnasium(id: str) -> None:
    compiled, original = compiled_of(id), original_of(id)
    observation_space, _ = observation_crossing(original.observation_space, id)
    action_space, _ = action_crossing(original.action_space, id)
    assert compiled.action_space == action_space
    assert isinstance(compiled.observation_space, Box)
    assert compiled.observation_space.shape == observation_space.shape
    for mine, theirs in zip(compiled.observation_space.bounds(), observation_space.bounds(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert compiled.max_episode_steps == gymnasium.spec(id).max_episode_steps


def test_the_sutton_barto_reward_is_that_of_gymnasium() -> None:
    env = original_of("CartPole-v1", sutton_barto_reward=True).unwrapped
    compiled = compiled_of("CartPole-v1", sutton_barto_reward=True)
    env.reset(seed=0)
    for angle, expected in ((0.0, 0.0), (0.3, -1.0)):
        env.state, env.steps_beyond_terminated = np.array([0.0, 0.0, angle, 0.0]), None
        _, reward, terminated = compiled.step(CartPoleState(*jnp.array([0.0, 0.0, angle, 0.0])), jnp.int32(1))
        assert float(reward) == env.step(1)[1] == expected
        assert bool(terminated) == (expected == -1.0)


def test_gravity_and_goal_velocity_are_felt_as_in_gymnasium() -> None:
    pendulum = original_of("Pendulum-v1", g=3.7).unwrapped
    pendulum.reset(seed=0)
    pendulum.state = np.array([1.0, 0.5])
    obs = pendulum.step(np.array([0.3], np.float32))[0]
    compiled = compiled_of("Pendulum-v1", g=3.7)
    state, _, _ = compiled.step(PendulumState(jnp.float32(1.0), jnp.float32(0.5)), jnp.array([0.3]))
    np.testing.assert_allclose(compiled.observe(state), obs, rtol=1e-5)
    for id in ("MountainCar-v0", "MountainCarContinuous-v0"):
        for goal_velocity, arrives in ((0.02, True), (0.05, False)):
            car = original_of(id, goal_velocity=goal_velocity).unwrapped
            car.reset(seed=0)
            car.state = np.array([0.49, 0.03])
            action = 1 if id == "MountainCar-v0" else np.zeros(1, np.float32)
            state = MountainCarState(jnp.float32(0.49), jnp.float32(0.03))
            _, _, terminated = compiled_of(id, goal_velocity=goal_velocity).step(state, jnp.asarray(action))
            assert bool(terminated) == car.step(action)[2] == arrives


def test_a_pendulum_that_turns_for_long_stays_as_exact() -> None:
    compiled, env = compiled_of("Pendulum-v1", max_episode_steps=100_000), original_of("Pendulum-v1").unwrapped
    env.reset(seed=0)
    env.state = np.array([3.0, 8.0])
    state = PendulumState(jnp.float32(3.0), jnp.float32(8.0))
    step = jax.jit(compiled.step)
    push = np.array([2.0], np.float32)
    for _ in range(300):
        _, reward, *_ = env.step(push)
        state, compiled_reward, _ = step(state, push)
        assert float(compiled_reward) == pytest.approx(reward, abs=2e-3)
        assert abs(float(state.angle)) <= np.pi + 1e-5
    assert abs(env.state[0]) > 10 * np.pi
