"""The common part of cores with one of Steppe's agents: the policy and exploration for workers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from steppe.runners.engines.asynchronous.wire.board import Spaces
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.learning import Learner


class AgentCore:
    """An agent and its state; subclasses receive batches and learn."""

    def __init__(self, agent: Any, task: Task, spaces: Spaces) -> None:
        self.agent, self.task, self.spaces = agent, task, spaces
        self.updates = 0
        self._numbers = agent.numbers
        self._learner: Learner
        self._names: list[str] = []
        # A compiled call copies all parameters, so it is only used if it computes something.
        self._acting = jax.jit(agent.actor_params) if agent.perturbs_parameters else agent.actor_params

    @property
    def unsaved(self) -> int:
        """A snapshot holds all batches."""
        return 0

    def weights(self) -> dict[str, np.ndarray]:
        """The policy's tensors, with noise if the agent explores by noise in its parameters."""
        state = self._learner.agent
        return self.agent.policy_tensors(state._replace(params=self._acting(state).params))

    def exploration(self, timestep: int) -> dict[str, float]:
        """The agent's exploration."""
        return {name: float(value) for name, value in self.agent.exploration(timestep, np).items()}

    def policy(self, timestep: int) -> Any:
        """The agent's policy, without noise."""
        return self.agent.policy(self._learner.agent, timestep)
