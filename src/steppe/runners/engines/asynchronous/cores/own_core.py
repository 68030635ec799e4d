"""Policies of the user's own: the learner gives them batches and sends their weights to workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from steppe.errors import UserError
from steppe.files.durable import storing, write_atomically
from steppe.files.tensors import serialize
from steppe.runners.engines.asynchronous.cores._base import Learned, Pace
from steppe.runners.engines.asynchronous.wire.batches import WorkerBatch
from steppe.runners.engines.asynchronous.wire.board import Spaces
from steppe.runners.engines.asynchronous.wire.task import Task

WEIGHTS = "weights.safetensors"
RESERVED = frozenset(
    (
        "time",
        "timestep",
        "episode",
        "update",
        "worker",
        "timesteps",
        "episodes",
        "updates",
        "mean_return",
        "mean_length",
    )
    + ("steps_per_second", "workers", "updates_per_second", "policy_lag", "waiting", "dropped", "lost")
    + ("learner_utilisation", "evaluation_return", "evaluation_length")
)
"""Metrics of the run itself, whose names a policy's own metrics must not have."""


@runtime_checkable
class OwnPolicy(Protocol):
    """The interface of a user's policy. The learner's copy learns, those of the workers act.

    A policy may have `get_state()` and `set_state(arrays)` too, with everything that a checkpoint needs beside the
    weights, such as an optimiser's moments: NumPy arrays by name.
    """

    def act(self, observations: np.ndarray, greedy: bool) -> Any:
        """Observations [N, ...] -> actions [N, ...], choices counted from 0; the best ones if `greedy`."""

    def learn(self, batch: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """One update on a sample of the memory; metrics by name, such as {"loss": 0.1}, but none of `RESERVED`."""

    def get_weights(self) -> Mapping[str, np.ndarray]:
        """The weights for acting, as NumPy arrays by name."""

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Replaces the weights by arrays like those of `get_weights`, as float32."""


@runtime_checkable
class OwnReplay(Protocol):
    """The interface of a user's replay memory; `snapshot` and `restore`, as in `UniformReplay`, are optional."""

    def add(self, timesteps: Mapping[str, np.ndarray]) -> None:
        """Takes in arrays [T, N, ...] by name: observations, actions, rewards, terminated, truncated,
        next_observations."""

    def sample(self) -> Mapping[str, np.ndarray] | None:
        """A batch for `learn`; None while there is too little data."""


class OwnCore:
    """A user's policy and its replay memory, with a ratio of updates to timesteps or as fast as possible."""

    def __init__(
        self, policy: OwnPolicy, replay: OwnReplay, task: Task, spaces: Spaces, ratio: float | None = None
    ) -> None:
        self.policy_object, self.replay = policy, replay
        self.task, self.spaces = task, spaces
        self.updates = 0
        self.agent = None
        self._pace = Pace(ratio)
        self._has_enough = False
        self._drawn: Mapping[str, np.ndarray] | None = None

    def begin(self, seed: int) -> None:
        """Keeps the policy as the user made it."""

    def restore(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        """Restores the policy's state or weights, and the memory if it can be restored."""
        parts: dict[str, dict[str, np.ndarray]] = {"state": {}, "weights": {}, "replay": {}}
        for name, array in arrays.items():
            part, _, rest = name.partition("/")
            parts.setdefault(part, {})[rest] = array
        policy: Any = self.policy_object
        policy.set_weights(parts["weights"])
        if parts["state"]:
            policy.set_state(parts["state"])
        if hasattr(self.replay, "restore"):
            self.replay.restore(parts["replay"])
        self.updates = int(arrays["own/updates"])
        self._pace.owed = float(arrays["own/owed"])
        self._draw()

    def snapshot(self) -> dict[str, np.ndarray]:
        """Weights, and the state and memory if they can be saved."""
        policy: Any = self.policy_object
        arrays = {f"weights/{name}": array for name, array in self.weights().items()}
        if hasattr(policy, "get_state"):
            arrays |= {f"state/{name}": np.asarray(array) for name, array in policy.get_state().items()}
        if hasattr(self.replay, "snapshot"):
            arrays |= {f"replay/{name}": np.asarray(array) for name, array in self.replay.snapshot().items()}
        return arrays | {"own/updates": np.array(self.updates), "own/owed": np.array(self._pace.owed)}

    @property
    def unsaved(self) -> int:
        """Zero, since all batches are in the memory."""
        return 0

    @property
    def wants_data(self) -> bool:
        """False while updates are due."""
        return self._drawn is None or self._pace.wants_data

    @property
    def can_learn(self) -> bool:
        """True once the memory gives a sample."""
        return self._drawn is not None and self._pace.is_due

    def take_in(self, batch: WorkerBatch) -> None:
        """Adds a batch to the memory."""
        names = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations")
        self.replay.add({name: getattr(batch, name) for name in names})
        if self._drawn is not None:
            self._pace.count(batch.timesteps)
        else:
            self._draw()

    def learn(self, seconds: float) -> Learned:
        """Takes updates until the time is over or none is due."""
        deadline = time.perf_counter() + seconds
        sums: dict[str, float] = {}
        done = 0
        while self._drawn is not None and self._pace.is_due:
            for name, value in (self.policy_object.learn(self._drawn) or {}).items():
                if name in RESERVED:
                    raise UserError(
                        f'the policy\'s learn returns a metric "{name}", which the run counts itself; call it '
                        f'something else, such as "policy_{name}"'
                    )
                sums[name] = sums.get(name, 0.0) + float(value)
            done += 1
            self._pace.paid(1)
            self._draw()
            if time.perf_counter() >= deadline:
                break
        self.updates += done
        metrics = {name: total / done for name, total in sums.items()}
        return Learned(done, metrics, all(np.isfinite(value) for value in metrics.values()))

    def weights(self) -> dict[str, np.ndarray]:
        """Copies, since the policy may change its own arrays."""
        return {name: np.array(array, np.float32) for name, array in self.policy_object.get_weights().items()}

    def exploration(self, timestep: int) -> dict[str, float]:
        """Empty: the policy explores by itself."""
        return {}

    def policy(self, timestep: int) -> SavedWeights:
        """The weights, to be saved."""
        return SavedWeights(self.weights(), timestep)

    def _draw(self) -> None:
        self._drawn = self.replay.sample()


class SavedWeights:
    """The saved form of a user's policy: its weights, for its own code to load."""

    def __init__(self, weights: dict[str, np.ndarray], timestep: int) -> None:
        self._weights, self._timestep = weights, timestep

    def save(self, folder: Path | str) -> Path:
        """Writes weights.safetensors; a reader gets the old weights or the new ones."""
        folder = Path(folder)
        with storing(folder):
            folder.mkdir(exist_ok=True)
        write_atomically(folder / WEIGHTS, serialize(self._weights, {"timestep": str(self._timestep)}))
        return folder


def check_own(policy: Any, replay: Any) -> None:
    """Raises a UserError that names a missing method."""
    for given, kind, what in ((policy, OwnPolicy, "policy"), (replay, OwnReplay, "replay")):
        names = [name for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))]
        if missing := [name for name in names if not callable(getattr(given, name, None))]:
            raise UserError(
                f"{what} is {_a(given)}, which has no {missing[0]}; give one with the methods {', '.join(names)}"
                + (', or the name of an agent such as "sac"' if what == "policy" else ", such as UniformReplay()")
            )


def _a(given: Any) -> str:
    return "None" if given is None else f"a {type(given).__name__}"
