"""A replay memory with demonstrations against plain lists of timesteps."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steppe.memories import DemonstratedReplay, Replay, Timesteps

EXAMPLE = Timesteps(
    observations=np.zeros(1, np.float32),
    actions=np.zeros((), np.int32),
    rewards=np.zeros((), np.float32),
    terminated=np.zeros((), bool),
    truncated=np.zeros((), bool),
    next_observations=np.zeros(1, np.float32),
)
COUNT = 14
OWN = 100.0
"""The observations of the agent's own timesteps are numbered from here, those of demonstrations from 0."""
sample = jax.jit(DemonstratedReplay.sample, static_argnums=(0, 3))
add = jax.jit(DemonstratedReplay.add, static_argnums=0)
reprioritize = jax.jit(DemonstratedReplay.reprioritize, static_argnums=0)


def numbered(first, lead, seed=0, ends=0.2):
    """[*lead, ...] in order of time; each observation is its own number, and what follows it half a number more."""
    rng = np.random.default_rng(seed)
    numbers = (first + np.arange(np.prod(lead), dtype=np.float32)).reshape(*lead, 1)
    terminated, truncated = rng.random((2, *lead)) < ends / 2
    return Timesteps(
        observations=numbers,
        actions=rng.integers(0, 5, lead).astype(np.int32),
        rewards=rng.normal(size=lead).astype(np.float32),
        terminated=terminated,
        truncated=truncated & ~terminated,
        next_observations=numbers + np.float32(0.5),
    )


def shown(seed=0, count=COUNT):
    timesteps = numbered(0.0, (count, 1), seed)
    timesteps.truncated[-1] = ~timesteps.terminated[-1]
    return timesteps


def make(n_step=1, per_batch=8, demonstrations=None, num_envs=2, capacity=12, **replay):
    own = Replay(capacity=capacity, num_envs=num_envs, horizon=2, discount=0.9, n_step=n_step, **replay)
    return DemonstratedReplay(own, shown() if demonstrations is None else demonstrations, per_batch)


def after_blocks(memory, blocks):
    """(state, every block that was added)."""
    state, added = memory.init(EXAMPLE), []
    for number in range(blocks):
        lead = (memory.own.horizon, memory.num_envs)
        added.append(numbered(OWN + number * np.prod(lead), lead, seed=number))
        state = add(memory, state, added[-1])
    return state, added


def transition(timesteps, t, n_step, discount=0.9):
    """(return, discount, successor) of up to n timesteps [M, 1, ...] from t on."""
    total, factor = 0.0, 1.0
    for step in range(t, t + n_step):
        total += factor * float(timesteps.rewards[step, 0])
        factor *= discount
        if timesteps.terminated[step, 0]:
            factor = 0.0
        if timesteps.terminated[step, 0] or timesteps.truncated[step, 0]:
            break
    return total, factor, float(timesteps.next_observations[step, 0, 0])


def host(tree):
    return jax.tree.map(np.asarray, tree)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(n_step=st.sampled_from([1, 2, 5, 30]), seed=st.integers(0, 1000))
def test_demonstrated_rows_are_the_transitions_of_a_plain_list(n_step, seed):
    timesteps = shown(seed)
    memory = make(n_step, demonstrations=timesteps, per_batch=200, capacity=64)
    state, _ = after_blocks(memory, 1)
    drawn = host(memory.sample_demonstrations(state, jax.random.key(seed), 200))
    numbers = drawn.observations[:, 0].astype(int)
    assert set(numbers) == set(range(COUNT))
    for i, t in enumerate(numbers):
        expected = transition(timesteps, t, n_step)
        found = drawn.rewards[i], drawn.discounts[i], drawn.next_observations[i, 0]
        assert found == pytest.approx(expected, abs=1e-4)
        assert drawn.actions[i] == timesteps.actions[t, 0]
        if n_step > 1:
            single = drawn.single
            found = single.rewards[i], single.discounts[i], single.next_observations[i, 0]
            assert found == pytest.approx(transition(timesteps, t, 1), abs=1e-5)
    assert (drawn.single is None) == (n_step == 1)
    assert drawn.demonstrated.all()
    np.testing.assert_array_equal(drawn.weights, 1.0)


def test_the_last_rows_of_a_batch_are_demonstrations_and_the_others_what_the_replay_memory_draws():
    memory = make(n_step=3)
    state, _ = after_blocks(memory, 5)
    key = jax.random.key(3)
    drawn = host(sample(memory, state, key, 20))
    own = host(memory.own.sample(state.own, jax.random.split(key)[0], 12))
    np.testing.assert_array_equal(drawn.demonstrated, [False] * 12 + [True] * 8)
    for name in ("observations", "actions", "rewards", "discounts", "next_observations", "weights", "places"):
        np.testing.assert_array_equal(getattr(drawn, name)[:12], getattr(own, name))
    assert np.all(drawn.observations[:12] >= OWN)
    assert np.all(drawn.observations[12:] < OWN)
    assert np.all(drawn.places[12:] == memory.rows * memory.num_envs + drawn.observations[12:, 0])


def test_own_rows_have_one_step_results():
    memory = make(n_step=3)
    state, blocks = after_blocks(memory, 5)
    drawn = host(sample(memory, state, jax.random.key(1), 40))
    flat = {
        float(block.observations[t, env, 0]): (block, t, env) for block in blocks for t in range(2) for env in range(2)
    }
    for i in range(32):
        block, t, env = flat[float(drawn.observations[i, 0])]
        assert drawn.single.rewards[i] == block.rewards[t, env]
        assert drawn.single.discounts[i] == pytest.approx(0.0 if block.terminated[t, env] else 0.9)
        assert drawn.single.next_observations[i, 0] == block.next_observations[t, env, 0]


def test_demonstrations_are_never_overwritten():
    memory = make()
    state, _ = after_blocks(memory, 30)
    assert state.filled == memory.rows
    jax.tree.map(np.testing.assert_array_equal, host(state.demonstrations), memory.demonstrations)


def test_the_memory_owns_its_arrays():
    memory = make()
    state = memory.init(EXAMPLE)
    state.demonstrations.rewards[:] = 7.0
    assert not np.any(memory.demonstrations.rewards == 7.0)


def test_demonstrations_take_the_dtypes_of_the_agents_own_timesteps():
    given = shown()._replace(actions=shown().actions.astype(np.int64), rewards=shown().rewards.astype(np.float64))
    state = make(demonstrations=given).init(EXAMPLE)
    for leaf, like in zip(state.demonstrations, EXAMPLE, strict=True):
        assert leaf.dtype == like.dtype


def test_uniform_draws_are_uniform_up_to_the_last_demonstration():
    memory = make(n_step=5, per_batch=20_000)
    drawn = memory.sample_demonstrations(memory.init(EXAMPLE), jax.random.key(1), 20_000)
    counts = np.bincount(np.asarray(drawn.observations)[:, 0].astype(int), minlength=COUNT)
    assert stats.chisquare(counts).pvalue > 0.01


def test_prioritised_demonstrations_are_drawn_by_their_last_error_and_weighted_against_it():
    memory = make(per_batch=COUNT, prioritized=True, priority_exponent=0.7, importance_exponent=0.5)
    state, _ = after_blocks(memory, 6)
    first = memory.rows * memory.num_envs
    errors = np.random.default_rng(0).uniform(0.1, 5.0, 4 + COUNT).astype(np.float32)
    places = np.concatenate([np.arange(4), first + np.arange(COUNT)])
    state = reprioritize(memory, state, places, errors, True)
    shares = errors[4:] ** 0.7 / (errors[4:] ** 0.7).sum()
    drawn = host(memory.sample_demonstrations(state, jax.random.key(0), 4096))
    numbers = drawn.observations[:, 0].astype(int)
    assert np.all(np.abs(np.bincount(numbers, minlength=COUNT) - 4096 * shares) <= 2)
    weights = (COUNT * shares[numbers]) ** -0.5
    np.testing.assert_allclose(drawn.weights, weights / weights.max(), rtol=1e-3)


def test_each_part_of_a_batch_gets_its_own_priorities():
    memory = make(per_batch=3, prioritized=True, priority_exponent=1.0)
    state, _ = after_blocks(memory, 6)
    first = memory.rows * memory.num_envs
    places = np.array([1, 5, first + 0, first + 3, first + COUNT - 1])
    errors = np.array([1.0, 2.0, 3.0, 4.0, 5.0], np.float32)
    after = host(reprioritize(memory, state, places, errors, True))
    own, demonstrated = (tree[len(tree) // 2 :] for tree in (after.own.tree, after.tree))
    np.testing.assert_allclose(own[[1, 5]], [1.0, 2.0], rtol=1e-4)
    np.testing.assert_allclose(demonstrated[[0, 3, COUNT - 1]], [3.0, 4.0, 5.0], rtol=1e-4)
    assert np.all(demonstrated[[1, 2]] == 1.0)
    np.testing.assert_allclose(after.tree[1], demonstrated.sum(), rtol=1e-5)
    unchanged = host(reprioritize(memory, state, places, errors, False))
    jax.tree.map(np.testing.assert_array_equal, unchanged, host(state))


def test_a_memory_of_one_demonstrated_timestep_works():
    memory = make(n_step=4, demonstrations=shown(count=1), prioritized=True)
    state, _ = after_blocks(memory, 4)
    drawn = host(sample(memory, state, jax.random.key(0), 20))
    np.testing.assert_array_equal(drawn.observations[12:], 0.0)
    assert np.all(np.isfinite(drawn.weights))


def test_it_has_the_properties_that_runners_read():
    memory = make(n_step=3, prioritized=True)
    asked = ("rows", "num_envs", "n_step", "prioritized")
    assert [getattr(memory, name) for name in asked] == [getattr(memory.own, name) for name in asked]
    assert memory.init(EXAMPLE).filled == 0
    assert after_blocks(memory, 2)[0].filled == 4


def test_an_interruption_ends_the_episodes_of_the_agents_own_newest_row():
    memory = make(capacity=12)
    state = add(memory, memory.init(EXAMPLE), numbered(OWN, (memory.own.horizon, memory.num_envs), ends=0.0))
    cut = memory.cut(state)
    newest = (int(state.own.head) - 1) % memory.rows
    assert not np.asarray(state.own.timesteps.truncated)[newest].any()
    assert np.asarray(cut.own.timesteps.truncated)[newest].all()
