"""Agents that do not learn: baselines for learners, and tests of an environment."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from steppe.agents._base import ActorParams, Agent, AgentContext, Internals, Metrics, TrainState, fresh_state
from steppe.agents.core.layout import Layout
from steppe.errors import SpecError
from steppe.policies import heads
from steppe.specs._base import Count
from steppe.specs.learning.agent_settings import AgentSettings
from steppe.specs.spaces import Box, Discrete, MultiDiscrete


class IdleSettings(AgentSettings):
    """Settings of agents that do not learn."""

    horizon: Count = 128
    """How many timesteps each environment takes between two checks of the stop conditions."""

    def horizon_for(self, num_envs: int) -> int:
        """The agent's setting."""
        return self.horizon


S = TypeVar("S", bound=IdleSettings)


class Idle(Agent[S], Generic[S]):
    """An agent that ignores observations and does not learn."""

    experience: ClassVar[Literal["trajectories", "transitions", "none"]] = "none"

    def __init__(self, settings: S, context: AgentContext) -> None:
        super().__init__(settings, context)
        self.horizon = settings.horizon
        self.layout = Layout({})

    def unflattened(self, actor_params: ActorParams) -> ActorParams:
        """Unchanged: there are no parameters."""
        return actor_params

    def gradients(self, state: TrainState, batch: Any) -> tuple[Array, Metrics]:
        """An empty gradient."""
        return state.params, {}

    def init(self, key: Array) -> TrainState:
        """A state with nothing but a key."""
        nothing = np.zeros(0, np.float32)
        return fresh_state(self, nothing, nothing, key)

    def outputs(self, actor_params: ActorParams, observations: Array, internals: Internals) -> tuple[Array, Internals]:
        """Empty outputs: there is no network."""
        return jnp.zeros((observations.shape[0], 0)), internals

    def update(self, state: TrainState, experience: Any) -> tuple[TrainState, Metrics]:
        """Learns nothing."""
        return state, {}

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """No tensors."""
        return {}


class RandomSettings(IdleSettings):
    """Settings of `random`."""


class Random(Idle[RandomSettings]):
    """Every action equally likely; unbounded continuous actions are drawn from a standard normal distribution."""

    type = kind = "random"
    always_draws = True
    Settings: ClassVar = RandomSettings

    def choose(
        self, outputs: Any, noise: Any, timestep: Any, internals: Internals, log_std: Any, xp: Any
    ) -> tuple[Any, Internals]:
        """The noise scaled to the action space."""
        return heads.sample("random", outputs, noise, self.context.action, xp), internals


class ConstantSettings(IdleSettings):
    """Settings of `constant`."""

    action: int | float | list[int] | list[float] = 0
    """The action that is always taken; one number stands for all elements. Also action_values."""


class Constant(Idle[ConstantSettings]):
    """Always the same action."""

    type = kind = "constant"
    Settings: ClassVar = ConstantSettings

    def __init__(self, settings: ConstantSettings, context: AgentContext) -> None:
        super().__init__(settings, context)
        space = context.action
        shape = () if isinstance(space, Discrete) else (space.size,) if isinstance(space, Box) else space.shape
        dtype = np.float32 if isinstance(space, Box) else np.int32
        given = np.asarray(settings.action, dtype)
        try:
            self.action = np.broadcast_to(given, shape).astype(dtype)
        except ValueError:
            raise SpecError(
                f"agent.action has {given.size} numbers, but an action of {context.environment} has {shape}"
            ) from None
        if not isinstance(space, Box):
            _check_choices(settings.action, self.action, space)

    def choose(
        self, outputs: Any, noise: Any, timestep: Any, internals: Internals, log_std: Any, xp: Any
    ) -> tuple[Any, Internals]:
        """The same action for every environment."""
        return xp.broadcast_to(self.action, (outputs.shape[0], *self.action.shape)), internals

    def policy_tensors(self, state: TrainState) -> dict[str, np.ndarray]:
        """The action, as the environment takes it."""
        taken = heads.postprocess("constant", self.action[None], self.context.action)[0]
        return {"constant/action": np.asarray(taken)}


def _check_choices(given: Any, action: np.ndarray, space: Discrete | MultiDiscrete) -> None:
    """Refuses choices that do not exist."""
    counts = np.asarray(space.n if isinstance(space, Discrete) else space.nvec)
    if np.any(np.asarray(given) != np.asarray(given).astype(np.int32)):
        raise SpecError(f"agent.action is {given}, but the choices are whole numbers")
    if np.any((action < 0) | (action >= counts)):
        last = (counts - 1).tolist()
        raise SpecError(f"agent.action is {given}, but the choices go from 0 to {last}")
