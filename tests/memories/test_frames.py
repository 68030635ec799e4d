"""A memory that keeps pictures as frames, against one that keeps whole observations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from steppe.memories import DemonstratedReplay, Frames, Replay, Timesteps, compact, frames_for, restore

add = jax.jit(Replay.add, static_argnums=0)
add_beside = jax.jit(DemonstratedReplay.add, static_argnums=0)
sample = jax.jit(Replay.sample, static_argnums=(0, 3))
reprioritize = jax.jit(Replay.reprioritize, static_argnums=0)
FRAME = (3, 2)
SMALL = Replay(60, 2, 2, 0.9, 2, prioritized=True, frames=Frames(4, 0))


class Worlds:
    """Environments whose observations are stacks of random frames, which are never seen twice by chance."""

    def __init__(self, frames: Frames, num_envs: int, seed: int, ends: float = 0.03, repeats: bool = True) -> None:
        self.frames, self.num_envs, self.ends, self.repeats = frames, num_envs, ends, repeats
        self.rng = np.random.default_rng(seed)
        self.seen = np.stack([self.first() for _ in range(num_envs)])

    def frame(self) -> np.ndarray:
        return self.rng.integers(0, 256, FRAME, np.uint8)

    def first(self) -> np.ndarray:
        """A stack as after a reset: copies of one frame, or frames that were seen before the first action."""
        one = self.frame()
        return self.stacked([one if self.repeats else self.frame() for _ in range(self.frames.count)])

    def stacked(self, frames: list[np.ndarray]) -> np.ndarray:
        return np.stack(frames) if self.frames.axis == 0 else np.stack(frames, -1)

    def after(self, stack: np.ndarray) -> np.ndarray:
        frames = list(stack) if self.frames.axis == 0 else list(np.moveaxis(stack, -1, 0))
        return self.stacked([*frames[1:], self.frame()])

    def block(self, horizon: int) -> Timesteps:
        """[horizon, N, ...]; some episodes terminate and go on being seen, as after a lost life."""
        rows = [self.row() for _ in range(horizon)]
        return Timesteps(*(np.stack(leaves) for leaves in zip(*rows, strict=True)))

    def row(self) -> Timesteps:
        following = np.stack([self.after(stack) for stack in self.seen])
        terminated, truncated = self.rng.random((2, self.num_envs)) < self.ends
        truncated &= ~terminated
        seen, self.seen = self.seen, following.copy()
        for env in np.flatnonzero(terminated | truncated):
            if truncated[env] or self.rng.random() < 0.5:
                self.seen[env] = self.first()
        actions = self.rng.integers(0, 5, self.num_envs).astype(np.int32)
        rewards = self.rng.normal(size=self.num_envs).astype(np.float32)
        return Timesteps(seen, actions, rewards, terminated, truncated, following)


def example(frames: Frames, dtype: Any = np.uint8) -> Timesteps:
    shape = (frames.count, *FRAME) if frames.axis == 0 else (*FRAME, frames.count)
    picture, scalar, flag = np.zeros(shape, dtype), np.zeros((), np.float32), np.zeros((), bool)
    return Timesteps(picture, np.zeros((), np.int32), scalar, flag, flag, picture)


def assert_same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


# Few shapes, since each is compiled: (capacity, num_envs, horizon, n_step).
CASES = [
    (Frames(4, 0), (80, 2, 4, 1), False, False),
    (Frames(4, -1), (120, 3, 2, 3), True, True),
    (Frames(1, 0), (60, 1, 4, 5), True, True),
    (Frames(4, 0), (60, 1, 1, 1), False, True),
]


@pytest.mark.parametrize(("kind", "shape", "prioritized", "repeats"), CASES)
def test_draws_equal_those_of_a_memory_of_whole_observations(
    kind: Frames, shape: tuple[int, int, int, int], prioritized: bool, repeats: bool
) -> None:
    capacity, num_envs, horizon, n_step = shape
    plain = Replay(capacity, num_envs, horizon, 0.9, n_step, prioritized)
    once = replace(plain, frames=kind)
    worlds = Worlds(kind, num_envs, 1, repeats=repeats)
    states = [memory.init(example(kind)) for memory in (plain, once)]
    for number in range(2 * plain.rows // horizon + 3):
        block = worlds.block(horizon)
        states = [add(memory, state, block) for memory, state in zip((plain, once), states, strict=True)]
        if int(states[0].filled) < n_step or number % 3:
            continue
        key = jax.random.key(number)
        drawn = [sample(memory, state, key, 16) for memory, state in zip((plain, once), states, strict=True)]
        assert_same(drawn[0], drawn[1])
        if prioritized:
            errors = np.random.default_rng(number).normal(size=16).astype(np.float32)
            states = [
                reprioritize(memory, state, each.places, errors, True)
                for memory, state, each in zip((plain, once), states, drawn, strict=True)
            ]
    assert states[0].filled == states[1].filled == plain.rows
    np.testing.assert_array_equal(states[0].tree, states[1].tree)


def test_very_short_episodes_leave_fewer_timesteps_but_never_wrong_ones() -> None:
    kind, memory = Frames(4, 0), SMALL
    worlds, state = Worlds(kind, 2, 3, ends=0.9, repeats=False), memory.init(example(kind))
    rows: list[Timesteps] = []
    for number in range(150):
        block = worlds.block(2)
        rows += [Timesteps(*(leaf[t] for leaf in block)) for t in range(2)]
        state = add(memory, state, block)
        if number % 7 or number < 2:
            continue
        drawn = sample(memory, state, jax.random.key(number), 16)
        assert int(state.filled) <= memory.rows
        ages = (int(state.head) - 1 - np.asarray(drawn.places) // 2) % memory.rows
        assert ages.max() < state.filled
        for index, (age, place) in enumerate(zip(ages, np.asarray(drawn.places), strict=True)):
            seen = rows[len(rows) - 1 - age]
            np.testing.assert_array_equal(drawn.observations[index], seen.observations[place % 2])
            if drawn.discounts[index] > 0.85:
                np.testing.assert_array_equal(drawn.next_observations[index], seen.next_observations[place % 2])
    assert 5 <= int(state.filled) < memory.rows


def test_a_truncated_episode_keeps_its_true_successor() -> None:
    kind = Frames(4, 0)
    memory = Replay(40, 1, 1, 0.5, 3, frames=kind)
    worlds, state = Worlds(kind, 1, 5, ends=0.0), memory.init(example(kind))
    before = [worlds.block(1) for _ in range(4)]
    for block in before:
        state = add(memory, state, block)
    state = memory.cut(state)
    worlds.seen = worlds.first()[None]
    for _ in range(4):
        state = add(memory, state, worlds.block(1))
    following = memory.following(state, np.array([3]), 3)
    np.testing.assert_array_equal(following.next_observations[0], before[3].next_observations[0, 0])
    assert following.discounts[0] == 0.5


def test_each_frame_is_kept_once() -> None:
    picture = np.zeros((4, 84, 84), np.uint8)
    atari = example(Frames())._replace(observations=picture, next_observations=picture)
    frames = frames_for(picture.shape, picture.dtype, (4, 0))
    memory = Replay(100_000, 1, 4, 0.99, 1, frames=frames)
    assert memory.size(atari) < 0.9e9
    assert replace(memory, frames=None).size(atari) > 5.6e9


@pytest.mark.parametrize("shape", [(17,), (4, 4, 3), (7, 7, 3), (100,)])
def test_small_observations_are_kept_whole(shape: tuple[int, ...]) -> None:
    assert frames_for(shape, np.uint8, None) is None


@pytest.mark.parametrize(("blocks", "ends"), [(0, 0.03), (7, 0.03), (44, 0.03), (7, 0.8), (44, 0.8)])
def test_a_restored_memory_continues_identically(blocks: int, ends: float) -> None:
    kind, memory = Frames(4, 0), SMALL
    worlds, state = Worlds(kind, 2, blocks, ends), memory.init(example(kind))
    for _ in range(blocks):
        state = add(memory, state, worlds.block(2))
    saved = compact(state)
    assert len(saved.timesteps.rewards) == int(state.filled)
    assert len(saved.frames.ring) == int(np.max(state.frames.used))  # type: ignore[union-attr]
    again = restore(memory.init(example(kind)), saved)
    for number in range(35):
        block = worlds.block(2)
        state, again = add(memory, state, block), add(memory, again, block)
        if number % 6 == 1:
            drawn = [sample(memory, each, jax.random.key(number), 16) for each in (state, again)]
            assert_same(*drawn)
            errors = np.linspace(0.1, 4.0, 16, dtype=np.float32)
            state, again = (reprioritize(memory, each, drawn[0].places, errors, True) for each in (state, again))
    assert_same(compact(state), compact(again))


@pytest.mark.parametrize("blocks", [0, 3, 29, 61])
@pytest.mark.parametrize("trimmed", [False, True])
def test_memories_of_older_checkpoints_are_converted(blocks: int, trimmed: bool) -> None:
    kind, once, plain = Frames(4, 0), SMALL, replace(SMALL, frames=None)
    worlds, state = Worlds(kind, 2, 1), plain.init(example(kind))
    for _ in range(blocks):
        state = add(plain, state, worlds.block(2))
    old = compact(state) if trimmed else jax.tree.map(np.asarray, state)
    new = restore(once.init(example(kind)), old)
    assert_same(jax.tree.map(np.asarray, restore(plain.init(example(kind)), old)), jax.tree.map(np.asarray, state))
    for number in range(20):
        block = worlds.block(2)
        state, new = add(plain, state, block), add(once, new, block)
        assert_same(
            *(sample(memory, each, jax.random.key(number), 16) for memory, each in ((plain, state), (once, new)))
        )


def test_a_memory_of_another_size_is_refused_in_one_sentence() -> None:
    kind, smaller = Frames(4, 0), replace(SMALL, capacity=40)
    worlds, state = Worlds(kind, 2, 0), SMALL.init(example(kind))
    for _ in range(13):
        state = add(SMALL, state, worlds.block(2))
    with pytest.raises(ValueError, match="the memory has 20 rows, but 26 were saved"):
        restore(smaller.init(example(kind)), compact(state))


def test_batches_with_demonstrations_equal_those_of_a_memory_of_whole_observations() -> None:
    kind = Frames(4, 0)
    shown = Worlds(kind, 1, 9).block(20)
    shown.truncated[-1] = ~shown.terminated[-1]
    plain = DemonstratedReplay(Replay(40, 1, 2, 0.9, 3), shown, 8)
    once = replace(plain, own=replace(plain.own, frames=kind))
    worlds = Worlds(kind, 1, 2)
    states = [memory.init(example(kind)) for memory in (plain, once)]
    for _ in range(30):
        block = worlds.block(2)
        states = [add_beside(memory, state, block) for memory, state in zip((plain, once), states, strict=True)]
    key = jax.random.key(0)
    drawn = [memory.sample(state, key, 16) for memory, state in zip((plain, once), states, strict=True)]
    assert_same(drawn[0], drawn[1])
