"""GridWorld-v0: find the way to the goal on a grid with walls; Steppe's own, of any size.

Reward: `goal_reward` for the move that reaches the goal, which ends the episode, and `step_reward` for every other
move. A move against a wall or the border leaves the agent where it is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field, model_validator

from steppe.envs._base import CompiledEnv
from steppe.specs._base import Count
from steppe.specs.spaces import Box, Discrete, Space

Side = Annotated[int, Field(ge=1, le=256)]
Cell = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]
SIDE = 384
"""The approximate number of pixels of a picture's longer side."""
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))


class GridWorldState(NamedTuple):
    """Each an int32 scalar: the cell's number, counted row by row."""

    agent: jax.Array
    goal: jax.Array


class GridWorld(CompiledEnv):
    """A walk to the goal over four kinds of move."""

    id: ClassVar[str] = "GridWorld-v0"

    width: Side = 5
    """How many columns."""
    height: Side = 5
    """How many rows."""
    walls: tuple[Cell, ...] = ()
    """Cells that cannot be entered, each as [row, column]."""
    start: Cell = (0, 0)
    """The [row, column] an episode starts in, unless `random_start`."""
    goal: Cell | None = None
    """The [row, column] to reach, unless `random_goal`; by default the corner at the bottom right."""
    random_start: bool = False
    """Whether each episode starts in another free cell."""
    random_goal: bool = False
    """Whether each episode has its goal in another free cell; the goal is then part of the observation."""
    observation: Literal["one_hot", "position", "image"] = "one_hot"
    """One-hot for the agent's cell (followed by the goal's, if that varies), the cell's number, or a picture."""
    goal_reward: float = 1.0
    """The reward for reaching the goal."""
    step_reward: float = -0.01
    """The reward for every other move."""
    max_episode_steps: Count | None = None
    """How many timesteps an episode may last before it is truncated; by default four for every cell."""

    @model_validator(mode="after")
    def _complete(self) -> GridWorld:
        """Fills the defaults that depend on the size and refuses grids on which the goal cannot be reached."""
        if self.goal is None:
            object.__setattr__(self, "goal", (self.height - 1, self.width - 1))
        if self.max_episode_steps is None:
            object.__setattr__(self, "max_episode_steps", 4 * self.width * self.height)
        named = [("walls", wall) for wall in self.walls]
        named += [] if self.random_start else [("start", self.start)]
        named += [] if self.random_goal or self.goal is None else [("goal", self.goal)]
        for name, (row, column) in named:
            if row >= self.height or column >= self.width:
                raise ValueError(f"{name} [{row}, {column}] lies outside the {self.height} x {self.width} grid")
            if name != "walls" and (row, column) in self.walls:
                raise ValueError(f"{name} [{row}, {column}] is a wall")
        if self.start == self.goal and not (self.random_start or self.random_goal):
            raise ValueError(f"start and goal are the same cell {list(self.start)}")
        if self.observation == "position" and self.random_goal:
            raise ValueError('observation "position" does not show a random goal; use "one_hot" or "image"')
        if len(_free_cells(self)) < 2:
            raise ValueError("the grid needs two free cells at least")
        if not _is_connected(self):
            raise ValueError("the walls cut some free cells off from the others, so a goal could not be reached")
        return self

    @property
    def observation_space(self) -> Space:
        """One of three, as `observation` says."""
        cells = self.width * self.height
        match self.observation:
            case "one_hot":
                return Box((2 * cells if self.random_goal else cells,), (0.0,), (1.0,))
            case "position":
                return Discrete(cells)
            case "image":
                return Box((self.height, self.width, 3), (0.0,), (255.0,), "uint8")

    @property
    def action_space(self) -> Discrete:
        """Up, right, down, left."""
        return Discrete(4)

    def reset(self, key: jax.Array) -> GridWorldState:
        """The given cells, or free ones drawn uniformly; start and goal always differ."""
        start_key, goal_key = jax.random.split(key)
        start, goal = self._number(self.start), self._number(self.goal)
        free = _free_cells(self)
        if self.random_start and self.random_goal:
            agent = jnp.asarray(free)[jax.random.randint(start_key, (), 0, len(free))]
            return GridWorldState(agent, _draw_other(goal_key, free, agent))
        if self.random_start:
            return GridWorldState(_draw_other(start_key, free, jnp.int32(goal)), jnp.int32(goal))
        if self.random_goal:
            return GridWorldState(jnp.int32(start), _draw_other(goal_key, free, jnp.int32(start)))
        return GridWorldState(jnp.int32(start), jnp.int32(goal))

    def step(self, state: GridWorldState, action: jax.Array) -> tuple[GridWorldState, jax.Array, jax.Array]:
        """One move; action: int []."""
        agent = jnp.asarray(_successors(self))[state.agent, action]
        terminated = agent == state.goal
        reward = jnp.where(terminated, jnp.float32(self.goal_reward), jnp.float32(self.step_reward))
        return GridWorldState(agent, state.goal), reward, terminated

    def observe(self, state: GridWorldState) -> jax.Array:
        """Float32 [cells] or [2 * cells], int32 [], or uint8 [height, width, 3]: agent, goal and walls as channels."""
        if self.observation == "position":
            return state.agent
        cells = jnp.arange(self.width * self.height)
        layers = [cells == state.agent, cells == state.goal]
        if self.observation == "one_hot":
            return jnp.concatenate(layers if self.random_goal else layers[:1]).astype(jnp.float32)
        layers.append(jnp.asarray(_is_wall(self)))
        return jnp.stack(layers, axis=-1).reshape(self.height, self.width, 3).astype(jnp.uint8) * jnp.uint8(255)

    def render(self, state: GridWorldState, pixels: int | None = None) -> np.ndarray:
        """A picture with `pixels` for each cell's side, uint8 [..., 3]: grey walls, green goal, blue agent.

        Without `pixels` the longer side has about SIDE pixels.
        """
        pixels = pixels or max(4, SIDE // max(self.height, self.width))
        picture = np.full((self.height * self.width, 3), 255, np.uint8)
        picture[_is_wall(self)] = (90, 90, 90)
        picture[int(state.goal)] = (60, 170, 90)
        picture[int(state.agent)] = (50, 100, 210)
        picture = picture.reshape(self.height, self.width, 3).repeat(pixels, 0).repeat(pixels, 1)
        picture[::pixels] = picture[:, ::pixels] = 200
        return picture

    def _number(self, cell: Any) -> int:
        """The number of the cell [row, column]."""
        return int(cell[0] * self.width + cell[1])


@lru_cache(maxsize=64)
def _is_wall(env: GridWorld) -> np.ndarray:
    """Bool [cells]."""
    wall = np.zeros((env.height, env.width), bool)
    for row, column in env.walls:
        wall[row, column] = True
    return wall.reshape(-1)


@lru_cache(maxsize=64)
def _free_cells(env: GridWorld) -> np.ndarray:
    """The numbers of all cells that are not walls, ascending, int32 [free]."""
    return np.flatnonzero(~_is_wall(env)).astype(np.int32)


@lru_cache(maxsize=64)
def _successors(env: GridWorld) -> np.ndarray:
    """The successor of each cell for each move, int32 [cells, 4]."""
    rows, columns = np.divmod(np.arange(env.width * env.height), env.width)
    table = []
    for down, right in MOVES:
        to_row = np.clip(rows + down, 0, env.height - 1)
        to_column = np.clip(columns + right, 0, env.width - 1)
        target = to_row * env.width + to_column
        table.append(np.where(_is_wall(env)[target], rows * env.width + columns, target))
    return np.stack(table, axis=1).astype(np.int32)


def _is_connected(env: GridWorld) -> bool:
    """Whether every free cell can be reached from every other."""
    free, successors = _free_cells(env), _successors(env)
    reached, frontier = {int(free[0])}, [int(free[0])]
    while frontier:
        for cell in successors[frontier.pop()].tolist():
            if cell not in reached:
                reached.add(cell)
                frontier.append(cell)
    return len(reached) == len(free)


def _draw_other(key: jax.Array, free: np.ndarray, taken: jax.Array) -> jax.Array:
    """A uniformly drawn free cell other than `taken`, int32 []."""
    index = jax.random.randint(key, (), 0, len(free) - 1)
    cells = jnp.asarray(free)
    # The cells are ascending, so every draw from the skipped one on moves up by one.
    return jnp.where(cells[index] >= taken, cells[index + 1], cells[index])
