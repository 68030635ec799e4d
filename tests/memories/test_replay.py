"""The replay memory against one that is a plain list of timesteps."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steppe.errors import UserError
from steppe.memories import Replay, Timesteps

EXAMPLE = Timesteps(
    observations=np.zeros(2, np.float32),
    actions=np.zeros((), np.int32),
    rewards=np.zeros((), np.float32),
    terminated=np.zeros((), bool),
    truncated=np.zeros((), bool),
    next_observations=np.zeros(2, np.float32),
)
add = jax.jit(Replay.add, static_argnums=0)
sample = jax.jit(Replay.sample, static_argnums=(0, 3))
reprioritize = jax.jit(Replay.reprioritize, static_argnums=0)


class Naive:
    """Every timestep ever seen, in lists; the number of a timestep and its environment are its observation."""

    def __init__(self, replay):
        self.replay = replay
        self.rows = []
        self.priorities = {}
        self.highest = 1.0

    def add(self, rng):
        """Makes and records one block of timesteps: [horizon, N, ...]."""
        replay = self.replay
        first = len(self.rows)
        lead = (replay.horizon, replay.num_envs)
        numbers = np.stack(np.meshgrid(np.arange(first, first + lead[0]), np.arange(lead[1]), indexing="ij"), -1)
        block = Timesteps(
            observations=numbers.astype(np.float32),
            actions=rng.integers(0, 5, lead).astype(np.int32),
            rewards=rng.normal(size=lead).astype(np.float32),
            terminated=rng.random(lead) < 0.15,
            truncated=rng.random(lead) < 0.15,
            next_observations=(numbers + 0.5).astype(np.float32),
        )
        self.rows += [Timesteps(*(leaf[t] for leaf in block)) for t in range(replay.horizon)]
        for t in range(first, len(self.rows)):
            ready = t - (replay.n_step - 1)
            for env in range(replay.num_envs):
                self.priorities.pop((t - replay.rows, env), None)
                if ready >= 0:
                    self.priorities[ready, env] = self.highest
        return block

    @property
    def drawable(self):
        """(timestep, environment) of all that is still kept and whose next n timesteps are known."""
        oldest = max(0, len(self.rows) - self.replay.rows)
        newest = len(self.rows) - self.replay.n_step
        return {(t, env) for t in range(oldest, newest + 1) for env in range(self.replay.num_envs)}

    def transition(self, t, env):
        """(return, discount, successor) of up to n timesteps from t on."""
        total, discount = 0.0, 1.0
        for step in range(self.replay.n_step):
            row = self.rows[t + step]
            total += discount * float(row.rewards[env])
            discount *= self.replay.discount
            if row.terminated[env]:
                return total, 0.0, row.next_observations[env]
            if row.truncated[env]:
                break
        return total, discount, row.next_observations[env]

    def reprioritize(self, cells, errors):
        for cell, error in zip(cells, errors, strict=True):
            self.priorities[cell] = (abs(float(error)) + 1e-6) ** self.replay.priority_exponent
        self.highest = max(self.highest, *(self.priorities[cell] for cell in cells))


def check_sample(naive, drawn):
    """Every drawn transition is exactly what the naive memory has of it; the drawn (timestep, environment) cells."""
    replay = naive.replay
    cells = [tuple(map(int, observation)) for observation in np.asarray(drawn.observations)]
    assert set(cells) <= naive.drawable
    for i, (t, env) in enumerate(cells):
        total, discount, successor = naive.transition(t, env)
        assert drawn.actions[i] == naive.rows[t].actions[env]
        assert drawn.rewards[i] == pytest.approx(total, abs=1e-4)
        assert drawn.discounts[i] == pytest.approx(discount, abs=1e-5)
        np.testing.assert_array_equal(drawn.next_observations[i], successor)
        assert drawn.places[i] == (t % replay.rows) * replay.num_envs + env
    return cells


# Few shapes, since each is compiled: (capacity, num_envs, horizon, n_step).
SHAPES = [(12, 1, 1, 1), (12, 2, 3, 1), (12, 3, 2, 2), (20, 1, 2, 4), (20, 2, 1, 3), (1, 2, 3, 4), (1, 1, 1, 5)]
shapes = st.sampled_from(SHAPES).map(lambda s: dict(zip(("capacity", "num_envs", "horizon", "n_step"), s, strict=True)))


def host(tree):
    return jax.tree.map(np.asarray, tree)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(shape=shapes, blocks=st.integers(1, 16), seed=st.integers(0, 1000))
def test_uniform_draws_are_the_transitions_of_a_plain_list(shape, blocks, seed):
    replay = Replay(**shape, discount=0.9)
    naive, state, rng = Naive(replay), replay.init(EXAMPLE), np.random.default_rng(seed)
    for block in range(blocks):
        state = add(replay, state, naive.add(rng))
        # A check after every block would take long, and the wrap-around of the ring matters most.
        if naive.drawable and (block % 5 == 0 or block == blocks - 1):
            drawn = host(sample(replay, state, jax.random.key(seed + block), 256))
            cells = check_sample(naive, drawn)
            assert set(cells) == naive.drawable
            np.testing.assert_array_equal(drawn.weights, 1.0)
    assert state.filled == min(len(naive.rows), replay.rows)
    assert state.head == len(naive.rows) % replay.rows


@settings(deadline=None, max_examples=25, derandomize=True)
@given(shape=shapes, blocks=st.integers(1, 12), seed=st.integers(0, 1000))
def test_prioritised_draws_and_priorities_are_those_of_a_plain_list(shape, blocks, seed):
    replay = Replay(**shape, discount=0.9, prioritized=True, priority_exponent=0.7, importance_exponent=0.5)
    naive, state, rng = Naive(replay), replay.init(EXAMPLE), np.random.default_rng(seed)
    for block in range(blocks):
        state = add(replay, state, naive.add(rng))
        if naive.drawable:
            drawn = host(sample(replay, state, jax.random.key(seed + block), 64))
            cells = check_sample(naive, drawn)
            shares = np.array([naive.priorities[cell] for cell in cells]) / sum(naive.priorities.values())
            weights = (len(naive.drawable) * shares) ** -0.5
            np.testing.assert_allclose(drawn.weights, weights / weights.max(), rtol=1e-3)
            errors = np.array([rng.normal(0.0, 3.0) for _ in cells], np.float32)
            # A cell drawn twice has the same error twice.
            errors = np.array([errors[cells.index(cell)] for cell in cells], np.float32)
            state = reprioritize(replay, state, drawn.places, errors, True)
            naive.reprioritize(cells, errors)
        priorities = np.zeros((replay.rows, replay.num_envs))
        for (t, env), priority in naive.priorities.items():
            priorities[t % replay.rows, env] = priority
        places = np.arange(replay.rows * replay.num_envs)
        np.testing.assert_allclose(leaves(replay, state)[places], priorities.ravel(), rtol=1e-4, atol=1e-7)
        assert state.highest == pytest.approx(naive.highest, rel=1e-4)
    assert set(naive.priorities) == naive.drawable


def leaves(replay, state):
    """The priority of every place; the tree's leaves are its second half."""
    tree = np.asarray(state.tree)
    return tree[len(tree) // 2 :]


def remembered(replay, blocks, seed=0):
    """(naive, state) after this many blocks."""
    naive, state, rng = Naive(replay), replay.init(EXAMPLE), np.random.default_rng(seed)
    for _ in range(blocks):
        state = add(replay, state, naive.add(rng))
    return naive, state


def test_the_memory_keeps_at_least_its_capacity():
    for capacity, num_envs, horizon, n_step in [
        (10, 3, 4, 1),
        (12, 3, 4, 1),
        (1, 1, 1, 5),
        (1, 2, 3, 4),
        (100, 8, 4, 3),
    ]:
        replay = Replay(capacity, num_envs, horizon, 0.9, n_step)
        assert replay.rows % horizon == 0
        assert replay.rows * num_envs >= capacity
        assert replay.rows >= n_step + horizon
        assert (replay.rows - horizon) * num_envs < capacity or replay.rows - horizon < n_step + horizon


def test_uniform_draws_are_uniform_over_rows_and_environments():
    replay = Replay(capacity=24, num_envs=3, horizon=2, discount=0.9, n_step=3)
    naive, state = remembered(replay, 7)
    drawn = sample(replay, state, jax.random.key(1), 20_000)
    counts = np.bincount(drawn.places, minlength=24)
    places = [(t % replay.rows) * 3 + env for t, env in naive.drawable]
    assert counts.sum() == counts[places].sum()
    assert stats.chisquare(counts[places]).pvalue > 0.01


def test_a_window_never_crosses_the_next_row_to_be_written():
    replay = Replay(capacity=20, num_envs=1, horizon=2, discount=1.0, n_step=4)
    for blocks in range(2, 25):
        naive, state = remembered(replay, blocks)
        drawn = host(sample(replay, state, jax.random.key(blocks), 400))
        oldest = max(0, len(naive.rows) - replay.rows)
        timesteps = drawn.observations[:, 0]
        assert timesteps.min() == oldest
        assert timesteps.max() == len(naive.rows) - 4
        # The last timestep of a window is never older than its first.
        assert np.all(drawn.next_observations[:, 0] > timesteps)


def test_termination_stops_the_return_for_good_and_truncation_only_cuts_it():
    replay = Replay(capacity=8, num_envs=3, horizon=4, discount=0.5, n_step=3)
    flags = np.zeros((4, 3), bool)
    terminated, truncated = flags.copy(), flags.copy()
    terminated[1, 0] = truncated[1, 1] = True
    numbers = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0), indexing="ij"), -1).astype(np.float32)
    block = Timesteps(
        numbers, flags.astype(np.int32), np.ones((4, 3), np.float32), terminated, truncated, numbers + np.float32(0.5)
    )
    state = add(replay, replay.init(EXAMPLE), block)
    drawn = host(sample(replay, state, jax.random.key(0), 64))
    seen = {tuple(map(int, o)): i for i, o in enumerate(drawn.observations)}
    ended, cut, going = (seen[0, env] for env in range(3))
    assert (drawn.rewards[ended], drawn.discounts[ended], drawn.next_observations[ended, 0]) == (1.5, 0.0, 1.5)
    assert (drawn.rewards[cut], drawn.discounts[cut], drawn.next_observations[cut, 0]) == (1.5, 0.25, 1.5)
    assert (drawn.rewards[going], drawn.discounts[going], drawn.next_observations[going, 0]) == (1.75, 0.125, 2.5)


def test_prioritised_draws_come_in_proportion_to_their_priorities():
    replay = Replay(capacity=24, num_envs=3, horizon=2, discount=0.9, n_step=2, prioritized=True)
    naive, state = remembered(replay, 7)
    cells = sorted(naive.drawable)
    places = np.array([(t % replay.rows) * 3 + env for t, env in cells])
    errors = np.random.default_rng(0).normal(0.0, 5.0, len(cells)).astype(np.float32)
    state = reprioritize(replay, state, places, errors, True)
    shares = (np.abs(errors) + 1e-6) ** 0.6
    shares = shares / shares.sum()
    drawn = sample(replay, state, jax.random.key(2), 4096)
    counts = np.bincount(drawn.places, minlength=24)[places]
    assert counts.sum() == 4096
    assert np.all(np.abs(counts - 4096 * shares) <= 2)


def test_rewards_of_different_priorities_average_to_the_uniform_mean_with_full_importance_weights():
    replay = Replay(24, 3, 2, 0.9, prioritized=True, priority_exponent=1.0, importance_exponent=1.0)
    naive, state = remembered(replay, 8)
    cells = sorted(naive.drawable)
    places = np.array([(t % replay.rows) * 3 + env for t, env in cells])
    errors = np.random.default_rng(0).uniform(0.1, 2.0, len(cells)).astype(np.float32)
    state = reprioritize(replay, state, places, errors, True)
    drawn = host(sample(replay, state, jax.random.key(3), 20_000))
    uniform = np.mean([naive.rows[t].rewards[env] for t, env in cells])
    assert np.average(drawn.rewards, weights=drawn.weights) == pytest.approx(uniform, abs=0.01)
    assert drawn.weights.max() == 1.0


@pytest.mark.parametrize("blocks", [1, 9])
def test_errors_that_do_not_count_change_nothing(blocks):
    replay = Replay(capacity=20, num_envs=2, horizon=2, discount=0.9, n_step=3, prioritized=True)
    _, state = remembered(replay, blocks)
    drawn = sample(replay, state, jax.random.key(0), 16)
    if blocks > 1:
        state = reprioritize(replay, state, drawn.places, np.linspace(0.1, 9.0, 16).astype(np.float32), True)
    after = reprioritize(replay, state, drawn.places, np.full(16, 1e6, np.float32), False)
    jax.tree.map(np.testing.assert_array_equal, host(after), host(state))


def test_new_timesteps_start_with_the_highest_priority_given_so_far():
    replay = Replay(capacity=20, num_envs=1, horizon=2, discount=0.9, prioritized=True, priority_exponent=0.5)
    naive, state = remembered(replay, 2)
    state = reprioritize(replay, state, np.array([0]), np.array([9.0], np.float32), True)
    state = add(replay, state, naive.add(np.random.default_rng(0)))
    np.testing.assert_allclose(leaves(replay, state)[:7], [3.0, 1.0, 1.0, 1.0, 3.0, 3.0, 0.0], rtol=1e-5)


def test_the_memory_takes_the_dtypes_of_its_example():
    example = EXAMPLE._replace(
        observations=np.zeros((4, 4, 1), np.uint8), next_observations=np.zeros((4, 4, 1), np.uint8)
    )
    replay = Replay(capacity=8, num_envs=2, horizon=2, discount=0.9)
    state = replay.init(example)
    lead = (2, 2)
    block = jax.tree.map(lambda leaf: np.ones((*lead, *leaf.shape), leaf.dtype), example)
    after = add(replay, state, block)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
    assert sample(replay, after, jax.random.key(0), 4).observations.dtype == np.uint8


def test_the_memory_runs_inside_a_compiled_loop():
    replay = Replay(capacity=12, num_envs=2, horizon=2, discount=0.9, n_step=2, prioritized=True)
    rng = np.random.default_rng(0)
    naive = Naive(replay)
    blocks = [naive.add(rng) for _ in range(6)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *blocks)

    @partial(jax.jit)
    def run(state):
        def step(state, at):
            block, key = at
            state = replay.add(state, block)
            drawn = replay.sample(state, key, 4)
            return replay.reprioritize(state, drawn.places, drawn.rewards, True), drawn.places

        return jax.lax.scan(step, state, (stacked, jax.random.split(jax.random.key(0), 6)))

    looped, places = run(replay.init(EXAMPLE))
    state = replay.init(EXAMPLE)
    for block, key, drawn_in_loop in zip(blocks, jax.random.split(jax.random.key(0), 6), places, strict=True):
        state = add(replay, state, block)
        drawn = sample(replay, state, key, 4)
        np.testing.assert_array_equal(drawn.places, drawn_in_loop)
        state = reprioritize(replay, state, drawn.places, drawn.rewards, True)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), host(looped), host(state))


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_memory_that_no_machine_can_hold_is_refused_by_its_setting(prioritized):
    replay = Replay(capacity=10**13, num_envs=2, horizon=2, discount=0.9, prioritized=prioritized)
    with pytest.raises(UserError, match=r"10,000,000,000,000 timesteps takes .* GB, and .*agent\.memory\.capacity"):
        replay.init(EXAMPLE)
