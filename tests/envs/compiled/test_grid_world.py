from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steppe.envs.compiled.grid_world import GridWorld, GridWorldState
from steppe.envs.registry import make_compiled
from steppe.errors import SpecError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box, Discrete


def test_random_moves_equal_a_simple_reference() -> None:
    env = GridWorld(width=6, height=4, walls=((1, 1), (1, 2), (2, 4)), goal=(3, 5), goal_reward=2.0, step_reward=-0.5)
    rng = np.random.default_rng(0)
    step = jax.jit(env.step)
    free = [(r, c) for r in range(4) for c in range(6) if (r, c) not in env.walls]
    arrived = 0
    for _ in range(500):
        row, column = free[rng.integers(len(free))]
        action = int(rng.integers(4))
        to = {0: (row - 1, column), 1: (row, column + 1), 2: (row + 1, column), 3: (row, column - 1)}[action]
        to = to if to in free else (row, column)
        state, reward, terminated = step(GridWorldState(jnp.int32(row * 6 + column), jnp.int32(23)), jnp.int32(action))
        assert divmod(int(state.agent), 6) == to
        assert bool(terminated) == (to == (3, 5))
        assert float(reward) == (2.0 if to == (3, 5) else -0.5)
        arrived += bool(terminated)
    assert arrived


def test_random_starts_and_goals_cover_all_free_cells_and_differ() -> None:
    keys = jax.random.split(jax.random.key(0), 2000)
    for random_start, random_goal in ((True, True), (True, False), (False, True)):
        env = GridWorld(width=3, height=3, walls=((1, 1),), random_start=random_start, random_goal=random_goal)
        agents, goals = (np.asarray(cells) for cells in jax.vmap(env.reset)(keys))
        assert np.all(agents != goals)
        assert len(np.unique(agents)) == (1 if not random_start else 8 if random_goal else 7)
        assert len(np.unique(goals)) == (1 if not random_goal else 8 if random_start else 7)
        assert 4 not in agents
        assert 4 not in goals
        drawn = agents if random_start else goals
        counts = np.bincount(drawn, minlength=9)[np.unique(drawn)]
        assert counts.max() < 1.4 * counts.min()


def test_the_three_observations_show_the_same_state() -> None:
    settings = {"width": 3, "height": 2, "walls": ((0, 1),)}
    state = GridWorldState(jnp.int32(3), jnp.int32(5))
    one_hot, position, image = (GridWorld(**settings, observation=o) for o in ("one_hot", "position", "image"))
    assert one_hot.observe(state).tolist() == [0, 0, 0, 1, 0, 0]
    assert GridWorld(**settings, random_goal=True).observe(state).tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert position.observe(state) == 3
    assert position.observation_space == Discrete(6)
    picture = np.asarray(image.observe(state))
    assert image.observation_space == Box((2, 3, 3), (0.0,), (255.0,), "uint8")
    assert picture.dtype == np.uint8
    assert [np.flatnonzero(picture[..., layer]).tolist() for layer in range(3)] == [[3], [5], [1]]
    assert picture.max() == 255


def test_defaults_depend_on_the_size() -> None:
    env = GridWorld(width=4, height=7)
    assert env.goal == (6, 3)
    assert env.max_episode_steps == 112
    assert GridWorld(max_episode_steps=9).max_episode_steps == 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"walls": [[0, 9]]}, r"walls \[0, 9\] lies outside the 5 x 5 grid"),
        ({"walls": [[0, 0]]}, r"start \[0, 0\] is a wall"),
        ({"goal": [9, 0]}, r"goal \[9, 0\] lies outside the 5 x 5 grid"),
        ({"goal": [0, 0]}, "start and goal are the same cell"),
        ({"walls": [[3, 4], [4, 3]]}, "the walls cut some free cells off"),
        ({"observation": "position", "random_goal": True}, "does not show a random goal"),
        ({"observation": "one_hott"}, 'did you mean "one_hot"'),
        ({"width": 1, "height": 1}, "start and goal are the same"),
        ({"widht": 3}, 'unknown field "widht".*did you mean "width"'),
    ],
)
def test_an_impossible_grid_is_refused_with_its_reason(settings: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_compiled(EnvironmentSpec(id="GridWorld-v0", settings=settings))


def test_a_random_start_or_goal_may_be_given_on_a_wall() -> None:
    env = GridWorld(width=3, height=3, walls=((0, 0), (2, 2)), random_start=True, random_goal=True)
    agents, goals = (np.asarray(cells) for cells in jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 200)))
    assert not {0, 8} & {*agents.tolist(), *goals.tolist()}


def test_a_picture_shows_agent_goal_and_walls_in_their_cells() -> None:
    env = GridWorld(width=3, height=2, walls=((0, 1),))
    picture = env.render(GridWorldState(jnp.int32(3), jnp.int32(5)), pixels=10)
    assert picture.shape == (20, 30, 3)
    assert picture[15, 5].tolist() == [50, 100, 210]
    assert picture[15, 25].tolist() == [60, 170, 90]
    assert picture[5, 15].tolist() == [90, 90, 90]


@pytest.mark.parametrize("side", [2, 4, 6, 50, 256])
def test_a_picture_is_large_enough(side: int) -> None:
    env = GridWorld(width=side, height=max(1, side // 2), walls=())
    picture = env.render(GridWorldState(jnp.int32(0), jnp.int32(0)))
    assert 300 <= picture.shape[1] <= 1024
