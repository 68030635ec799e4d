"""How a worker chooses its actions, with NumPy alone: with the learner's policy, or with one of the user's own."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from pydantic import TypeAdapter

from steppe.agents.core.noise import drift, initial_noise
from steppe.errors import UserError
from steppe.net.messagepack import Malformed
from steppe.net.protocol import DTYPES, Message, read_array
from steppe.policies import heads
from steppe.policies.description import PolicyDescription, tensor_shapes
from steppe.policies.policy import Policy
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.episode_collector import State
from steppe.specs.allowed_modules import EVERY_MODULE
from steppe.specs.learning.exploration import Noise
from steppe.specs.spaces import Box, Space


class Actor(Protocol):
    """Chooses actions for the environments of a worker."""

    version: int
    """The number of updates of the current policy; -1 before the first was fetched."""

    def take(self, news: Message) -> None:
        """Switches to the weights in a message of the learner, if it has some."""

    def initial(self, environments: int) -> State:
        """The recurrent state at the start of episodes: [N, ...] by name."""

    def draw(self, rows: int, environments: int, rng: np.random.Generator) -> Any:
        """The noise of T x N actions; `act` takes noise[t]."""

    def act(self, observations: np.ndarray, noise: Any, state: State) -> tuple[np.ndarray, np.ndarray | None, State]:
        """Observations [N, ...] -> (actions as the learner stores them, the policy's outputs, the state after)."""

    def act_greedily(self, observations: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """The best actions, and the state after."""

    def to_env_actions(self, actions: np.ndarray) -> np.ndarray:
        """Scales actions to the range that `GymnasiumEnvs` takes."""

    @property
    def log_std(self) -> np.ndarray | None:
        """The spread of a Gaussian policy, [A]."""


class PolicyActor:
    """Acts as the learner's agent does, by its exported policy."""

    def __init__(self, task: Task, action: Space) -> None:
        assert task.policy is not None
        self.version = -1
        # It was checked when the learner's message was read.
        description = PolicyDescription.from_json(task.policy, EVERY_MODULE)
        self._action, self._is_greedy = action, task.is_greedy
        self._shapes = tensor_shapes(description)
        self._policy = Policy(description, {name: np.zeros(shape) for name, shape in self._shapes.items()})
        self._kind = self._policy.kind
        self._columns = heads.noise_of(self._kind, action)
        self._noise: Any = None if task.noise is None else TypeAdapter(Noise).validate_python(task.noise)
        self._spread: dict[str, float] = {}

    def take(self, news: Message) -> None:
        """Reads new tensors if the policy changed, and always how much to explore."""
        if "policy" in news:
            tensors = {name: np.empty(shape, np.float32) for name, shape in self._shapes.items()}
            for name, tensor in tensors.items():
                read_array(_weights(news), name, tensor)
            self._policy.replace(tensors)
            self.version = _version(news)
        spread = news.get("exploration")
        if not isinstance(spread, dict) or not all(type(value) in (int, float) for value in spread.values()):
            raise Malformed('sent "exploration" as something else than numbers by name')
        self._spread = {name: float(spread[name]) for name in ("epsilon", "sigma") if name in spread}

    def initial(self, environments: int) -> State:
        """The initial state of recurrent layers and of drifting noise."""
        state = self._policy.initial_state((environments,))
        size = self._action.size if isinstance(self._action, Box) else 0
        return state | ({} if self._noise is None else initial_noise(self._noise, (environments,), size))

    def draw(self, rows: int, environments: int, rng: np.random.Generator) -> Any:
        """[T, N, columns]; a list of None if the worker does not explore."""
        if self._is_greedy:
            return [None] * rows
        return heads.draw_noise(self._columns, (rows, environments), rng)

    def act(self, observations: np.ndarray, noise: Any, state: State) -> tuple[np.ndarray, np.ndarray | None, State]:
        """The same as the agent's `act`."""
        outputs, state = self._policy.outputs_after(observations, state)
        if noise is None:
            return heads.greedy(self._kind, outputs, self._action), outputs, state
        if self._noise is not None and isinstance(self._action, Box):
            noise, state = drift(self._noise, noise, state, self._action.size, np)
        log_std = self._policy.tensors.get("head/log_std", 0.0)
        actions = heads.sample(self._kind, outputs, noise, self._action, log_std=log_std, **self._spread)
        return actions, outputs, state

    def act_greedily(self, observations: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """The actions without noise."""
        actions, _, state = self.act(observations, None, state)
        return actions, state

    def to_env_actions(self, actions: np.ndarray) -> np.ndarray:
        """Scales actions to the environment's bounds; `GymnasiumEnvs` clips them itself."""
        return heads.postprocess(self._kind, actions, self._action) if self._kind in heads.STRETCHED else actions

    @property
    def log_std(self) -> np.ndarray | None:
        """The parameter of Gaussian policies."""
        return self._policy.tensors.get("head/log_std")


class OwnActor:
    """Acts with a policy of the user's: an object with `act` and `set_weights`."""

    def __init__(self, policy: Any, action: Space) -> None:
        for name in ("act", "set_weights"):
            if not callable(getattr(policy, name, None)):
                raise UserError(f"a worker's policy needs the method {name}, which {type(policy).__name__} has not")
        self.version = -1
        self.log_std = None
        self._policy, self._action = policy, action

    def take(self, news: Message) -> None:
        """Hands new weights to the policy, as NumPy arrays by name."""
        if "policy" not in news:
            return
        weights = {}
        for name, value in _weights(news).items():
            if name != "op":
                shape = value.get("shape") if isinstance(value, dict) else None
                if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
                    raise Malformed(f'sent the weights "{name}" without a shape')
                weights[name] = np.empty(shape, DTYPES["float32"])
                read_array(_weights(news), name, weights[name])
        self._policy.set_weights(weights)
        self.version = _version(news)

    def initial(self, environments: int) -> State:
        """Such a policy has no state between actions."""
        return {}

    def draw(self, rows: int, environments: int, rng: np.random.Generator) -> Any:
        """Such a policy draws its own noise."""
        return [None] * rows

    def act(self, observations: np.ndarray, noise: Any, state: State) -> tuple[np.ndarray, np.ndarray | None, State]:
        """The policy's own actions, exploration included."""
        return self._shaped(self._policy.act(observations, False), len(observations)), None, state

    def act_greedily(self, observations: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Asks the policy for its best actions."""
        return self._shaped(self._policy.act(observations, True), len(observations)), state

    def to_env_actions(self, actions: np.ndarray) -> np.ndarray:
        """Returns the actions unchanged."""
        return actions

    def _shaped(self, actions: Any, rows: int) -> np.ndarray:
        space = self._action
        shape = (rows, space.size) if isinstance(space, Box) else (rows, *space.shape)
        try:
            return np.asarray(actions, np.float32 if isinstance(space, Box) else np.int32).reshape(shape)
        except (TypeError, ValueError):
            raise UserError(
                f"the policy's act returned actions of shape {np.shape(actions)} for {rows} observations; it must be "
                f"one action each, {shape}"
            ) from None


def _weights(news: Message) -> Message:
    policy = news["policy"]
    if not isinstance(policy, dict):
        raise Malformed('sent "policy" as something else than arrays by name')
    return {"op": "news", **policy}


def _version(news: Message) -> int:
    version = news.get("version")
    if type(version) is not int:
        raise Malformed('sent a policy without a "version"')
    return version
