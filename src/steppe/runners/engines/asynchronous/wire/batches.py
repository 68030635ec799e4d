"""Batches of timesteps that workers send, and their form on the wire."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steppe.errors import UserError
from steppe.net.messagepack import Malformed
from steppe.net.protocol import DTYPES, LARGEST, ROOM, Message, read_array, read_count, to_wire
from steppe.policies import heads
from steppe.policies.description import PolicyDescription
from steppe.policies.layers import plan
from steppe.policies.preprocessing import Preprocessing
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.specs.allowed_modules import EVERY_MODULE
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space

MOST_ENVIRONMENTS = 4096
"""The largest number of environments of one worker."""
MOST_EPISODES = 100_000
"""The largest number of episodes in one batch."""
LONGEST_EPISODE = 2**31 - 1
"""The longest episode in timesteps: checkpoints store lengths as int32."""
LARGEST_RETURN = 1e35
"""Checkpoints store returns as float32, which ends at 3.4e38: the sum of a window of them is still finite."""
LARGEST_NUMBER = 1e19
"""The largest observation, reward or output of the policy: its square is still a float32."""


@dataclass
class WorkerBatch:
    """T timesteps of N environments of one worker, in order of time; arrays are [T, N, ...]."""

    observations: np.ndarray
    actions: np.ndarray
    """In the form in which the learner stores them."""
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_observations: np.ndarray
    """The true successors, before any reset."""
    running_returns: np.ndarray | None = None
    outputs: np.ndarray | None = None
    """The outputs of the policy when it acted."""
    internals: dict[str, np.ndarray] = field(default_factory=dict)
    """The recurrent state before each action."""
    next_internals: dict[str, np.ndarray] = field(default_factory=dict)
    log_std: np.ndarray | None = None
    """The spread of a Gaussian policy, [A]."""
    returns: list[float] = field(default_factory=list)
    """The returns of the episodes that ended."""
    lengths: list[int] = field(default_factory=list)
    evaluations: list[tuple[float, int]] = field(default_factory=list)
    """(return, length) of greedy episodes, whose timesteps are not in the arrays."""
    version: int = 0
    """The number of updates of the policy that acted at the first timestep."""
    sequence: int = 0
    """Counts the batches of a worker, from 1 on."""

    @property
    def timesteps(self) -> int:
        """The number of timesteps, of all environments together."""
        return self.rewards.size

    @property
    def ended(self) -> np.ndarray:
        """Whether the episode ended at each timestep, bool [T, N]."""
        return self.terminated | self.truncated


class BatchFormat:
    """The shapes and dtypes of a batch, which follow from the task and the environment's spaces."""

    def __init__(self, task: Task, observation: Space, action: Space) -> None:
        self.action, self.task = action, task
        self.seen = observation if task.preprocessing is None else Preprocessing.from_json(task.preprocessing).space
        self.has_log_std = False
        self.internals: dict[str, tuple[int, ...]] = {}
        """The recurrent state, float32."""
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {}
        if task.policy is not None:
            # The learner's own task, or one that was checked when its message was read.
            description = PolicyDescription.from_json(task.policy, EVERY_MODULE)
            kind = description.head["kind"]
            self.has_log_std = kind == "gaussian" and "outputs" in task.keeps
            if "outputs" in task.keeps:
                shapes["outputs"] = ((heads.outputs_size(kind, action),), np.dtype(np.float32))
            if "internals" in task.keeps and description.network is not None:
                self.internals = dict(plan(description.network, description.observation).states)
        if "running_returns" in task.keeps:
            shapes["running_returns"] = ((), np.dtype(np.float32))
        self.extras = shapes

    @property
    def observation_dtype(self) -> np.dtype:
        """The dtype of stored observations."""
        return np.dtype(self.seen.dtype if self.seen.dtype in ("uint8", "int32") else np.float32)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of stored actions; those of a Box are flattened."""
        return (self.action.size,) if isinstance(self.action, Box) else self.action.shape

    @property
    def action_dtype(self) -> np.dtype:
        """The dtype of stored actions."""
        return np.dtype(np.float32 if isinstance(self.action, Box) else np.int32)

    def allocate(self, rows: int, environments: int) -> WorkerBatch:
        """Room for a batch."""
        lead = (rows, environments)

        def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
            return np.zeros((*lead, *shape), dtype)

        extras: dict[str, Any] = {name: zeros(*each) for name, each in self.extras.items()}
        return WorkerBatch(
            observations=zeros(self.seen.shape, self.observation_dtype),
            actions=zeros(self.action_shape, self.action_dtype),
            rewards=zeros((), np.float32),
            terminated=zeros((), bool),
            truncated=zeros((), bool),
            next_observations=zeros(self.seen.shape, self.observation_dtype),
            internals={name: zeros(shape, np.float32) for name, shape in self.internals.items()},
            next_internals={name: zeros(shape, np.float32) for name, shape in self.internals.items()},
            **extras,
        )

    def largest(self, environments: int) -> int:
        """The size in bytes of the longest valid message of a worker with that many environments."""
        rows = self.task.rows_for(environments)[1]
        seen = math.prod(self.seen.shape) * self.observation_dtype.itemsize
        taken = math.prod(self.action_shape) * self.action_dtype.itemsize
        more = sum(4 * math.prod(shape) for shape, _ in self.extras.values())
        remembered = sum(4 * math.prod(shape) for shape in self.internals.values())
        # Successors are sent at the ends of episodes, which may be everywhere.
        each = 2 * (seen + remembered) + taken + more + 6
        size = (rows + 1) * environments * (each + 32) + ROOM
        if size > LARGEST:
            raise UserError(
                f"a batch of {rows} timesteps of {environments} environments takes {size:,} bytes, more than one "
                "message may hold; lower batch_timesteps or num_envs"
            )
        return size


def to_message(batch: WorkerBatch) -> Message:
    """Encodes a batch; next observations are left out if they are the observations of the next row."""
    ended = batch.ended
    message: Message = {
        "op": "batch",
        "sequence": batch.sequence,
        "version": batch.version,
        "timesteps": len(batch.rewards),
        "observations": to_wire(batch.observations),
        "following": to_wire(_apart(batch.next_observations, ended)),
        "actions": to_wire(batch.actions),
        "rewards": to_wire(batch.rewards),
        "terminated": to_wire(batch.terminated),
        "truncated": to_wire(batch.truncated),
        "returns": batch.returns,
        "lengths": batch.lengths,
        "evaluations": [list(each) for each in batch.evaluations],
    }
    for name in ("running_returns", "outputs", "log_std"):
        if (array := getattr(batch, name)) is not None:
            message[name] = to_wire(array)
    for name, array in batch.internals.items():
        message[f"internals/{name}"] = to_wire(array)
        message[f"internals/{name}/following"] = to_wire(_apart(batch.next_internals[name], ended))
    return message


def from_message(message: Message, form: BatchFormat, environments: int) -> WorkerBatch:
    """Decodes an untrusted message; raises `Malformed` if it is no batch of this format."""
    rows = read_count(message, "timesteps")
    fewest, most = form.task.rows_for(environments)
    if rows > most or (form.task.rows is not None and rows != fewest):
        raise Malformed(f"sent {rows} timesteps of each environment where at most {most} make sense")
    batch = form.allocate(rows, environments)
    for name in ("observations", "actions", "rewards", "terminated", "truncated", *form.extras):
        read_array(message, name, getattr(batch, name))
    if (batch.terminated & batch.truncated).any():
        raise Malformed("sent an episode that was terminated and truncated at once")
    ended = batch.ended
    _read_following(message, "following", batch.observations, batch.next_observations, ended)
    for name, array in batch.internals.items():
        read_array(message, f"internals/{name}", array)
        _read_following(message, f"internals/{name}/following", array, batch.next_internals[name], ended)
    if form.has_log_std:
        batch.log_std = np.zeros(form.extras["outputs"][0], np.float32)
        read_array(message, "log_std", batch.log_std)
    batch.version, batch.sequence = read_count(message, "version", least=0), read_count(message, "sequence")
    batch.returns, batch.lengths = _returns(message.get("returns")), _lengths(message.get("lengths"))
    batch.evaluations = _evaluations(message.get("evaluations"))
    _check(batch, form)
    return batch


def _apart(following: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """The successors [E + N, ...] that are not the next row: at the ends of episodes, and after the last row."""
    return np.concatenate([following[:-1][ended[:-1]], following[-1]])


def _read_following(message: Message, name: str, rows: np.ndarray, out: np.ndarray, ended: np.ndarray) -> None:
    """Reconstructs the successors that `_apart` left out."""
    apart = np.empty((int(ended[:-1].sum()) + rows.shape[1], *rows.shape[2:]), rows.dtype)
    read_array(message, name, apart)
    out[:-1] = rows[1:]
    out[:-1][ended[:-1]] = apart[: -rows.shape[1]]
    out[-1] = apart[-rows.shape[1] :]


def _returns(values: Any, name: str = "returns") -> list[float]:
    _check_list(values, name)
    # NaN is not smaller than anything, and whole numbers may have any size.
    if not all(type(value) in (int, float) and abs(value) <= LARGEST_RETURN for value in values):
        raise Malformed(
            f'sent "{name}" with something else than numbers from -{LARGEST_RETURN:g} to {LARGEST_RETURN:g}'
        )
    return [float(value) for value in values]


def _lengths(values: Any, name: str = "lengths") -> list[int]:
    _check_list(values, name)
    if not all(type(value) is int and 1 <= value <= LONGEST_EPISODE for value in values):
        raise Malformed(f'sent "{name}" with something else than whole numbers from 1 to {LONGEST_EPISODE:,}')
    return list(values)


def _evaluations(values: Any) -> list[tuple[float, int]]:
    _check_list(values, "evaluations")
    if not all(isinstance(each, list) and len(each) == 2 for each in values):
        raise Malformed('sent "evaluations" as something else than a list of pairs')
    scores, lengths = ([each[i] for each in values] for i in range(2))
    return list(zip(_returns(scores, "evaluations"), _lengths(lengths, "evaluations"), strict=True))


def _check_list(values: Any, name: str) -> None:
    if not isinstance(values, list) or len(values) > MOST_EPISODES:
        raise Malformed(f'sent "{name}" as something else than a list of at most {MOST_EPISODES:,}')


def _check(batch: WorkerBatch, form: BatchFormat) -> None:
    """Refuses values that nobody can learn from, which would ruin the parameters for all workers."""
    if len(batch.returns) != len(batch.lengths):
        raise Malformed("sent other numbers of returns than of lengths")
    ended = int(np.count_nonzero(batch.ended))
    if len(batch.returns) > ended:
        raise Malformed(f"sent the returns of {len(batch.returns)} episodes where {ended} ended")
    arrays = [batch.observations, batch.next_observations, batch.rewards, batch.actions, batch.log_std, batch.outputs]
    arrays += [batch.running_returns, *batch.internals.values(), *batch.next_internals.values()]
    for array in arrays:
        if array is not None and array.dtype == DTYPES["float32"] and not _is_bounded(array):
            raise Malformed(f"sent a number that is NaN, or not within {LARGEST_NUMBER:g} of zero")
    _check_choices(batch.actions, form.action, 0)
    for seen in (batch.observations, batch.next_observations):
        _check_choices(seen, form.seen, getattr(form.seen, "start", 0))


def _is_bounded(array: np.ndarray) -> bool:
    """Whether no number is NaN or too large; min and max of an array with NaN are NaN, which fails both comparisons."""
    return array.size == 0 or bool(array.max() <= LARGEST_NUMBER and array.min() >= -LARGEST_NUMBER)


def _check_choices(values: np.ndarray, space: Space, start: int) -> None:
    if isinstance(space, Box):
        return
    counts = np.asarray(space.n if isinstance(space, Discrete) else space.nvec)
    assert isinstance(space, Discrete | MultiDiscrete)
    if ((values < start) | (values >= start + counts)).any():
        raise Malformed("sent a choice that does not exist")
