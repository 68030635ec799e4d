"""Preprocessing of observations for the network and of rewards for the agent, for NumPy and JAX.

| stage                 | one observation becomes                                                 | bytes stay bytes  |
|-----------------------|-------------------------------------------------------------------------|-------------------|
| image_resize          | the image in another size                                               | yes, rounded      |
| grayscale             | the weighted sum of its colours                                         | yes, rounded      |
| sequence              | the last few observations together, oldest first                        | yes               |
| flatten, expand_dims  | the same numbers in another shape                                       | yes               |
| divide by 255         | unchanged if all stages keep bytes, which the network divides by 255    | yes               |
| divide, clip          | each number divided or clipped to bounds                                | no: float32       |
| standardize           | each number minus their mean, by their deviation                        | no: float32       |
| normalize             | its numbers scaled to 0 .. 1                                            | no: float32       |
| running_standardize   | left to the agent, which keeps the statistics: see `normalizes`         | no: float32       |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import sqrt
from typing import Any

import numpy as np

from steppe.errors import SpecError
from steppe.policies.encoding import Shape
from steppe.policies.images import Resampling, box_within, refuse, resampling
from steppe.specs.learning import preprocessing as spec
from steppe.specs.spaces import Box, Space, from_json, to_json

EPSILON = np.float32(1e-6)
"""The least deviation, and the number added to a range, which prevents a division by 0 for equal numbers."""
BYTE_SCALE = 255.0
"""The divisor of bytes in a network: see `steppe.policies.encoding.Encoding`."""
MOST_STRIDED_COPIES = 32
STATE_PREFIX = "seen/"
"""Precedes the names of the preprocessing's arrays in the state of a policy: see `Policy.initial_state`."""
EPISODE_BEGUN = "anything"
"""The name of one more part of that state: whether the episode has begun."""

State = dict[str, Any]
"""The frames that sequences keep of each environment: arrays [N, ...]."""

Average = Callable[[Any], Any]


@dataclass(frozen=True)
class Preprocessing:
    """The stages for observations of one space; pure, and equal if stages and space are."""

    stages: spec.PreprocessingSpec
    observation: Space
    """The space of the environment."""
    space: Space = field(init=False, compare=False)
    """The space for the agent."""
    operations: tuple[Operation, ...] = field(init=False, compare=False, repr=False)
    """The stages as they are executed, some of them merged."""

    def __post_init__(self) -> None:
        operations, space = _plan(self.stages.root, self.observation)
        object.__setattr__(self, "operations", operations)
        object.__setattr__(self, "space", space)

    @property
    def stacked_frames(self) -> tuple[int, int] | None:
        """(number of stacked frames, their axis) if the last stage is a sequence, else None."""
        last = self.operations[-1] if self.operations else None
        return (last.length, -1) if isinstance(last, Stack) else None

    @property
    def normalizes(self) -> bool:
        """Whether the agent must normalise the results by running statistics."""
        return any(isinstance(stage, spec.RunningStandardize) for stage in self.stages.root)

    @property
    def is_stateful(self) -> bool:
        """Whether a result depends on earlier observations."""
        return any(isinstance(operation, Stack) for operation in self.operations)

    def initial(self, lead: tuple[int, ...]) -> State:
        """The state before the first observation, leaves [*lead, ...]; {} if no stage has a state."""
        stacks = (operation for operation in self.operations if isinstance(operation, Stack))
        return {stack.name: np.zeros((*lead, *stack.shape), stack.dtype) for stack in stacks}

    def __call__(self, observations: Any, state: State, is_first: Any, xp: Any = np) -> tuple[Any, State]:
        """Observations [N, ...] -> ([N, *space.shape], next state); neither may be changed in place.

        `is_first`, bool [N], marks the first observations of episodes, for which the state is ignored.
        """
        if not self.operations:
            return observations, {}
        x = xp.asarray(observations)
        dtype = _dtype(self.observation)
        x = x if x.dtype == dtype else x.astype(dtype)
        after = {}
        for operation in self.operations:
            if isinstance(operation, Stack):
                x = after[operation.name] = operation(x, state[operation.name], is_first, xp)
            else:
                x = operation(x, xp)
        return x, after

    def to_json(self) -> dict[str, Any]:
        """For policy.json."""
        return {"observation": to_json(self.observation), "stages": self.stages.model_dump(mode="json")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Preprocessing:
        """The inverse of `to_json`."""
        return cls(spec.PreprocessingSpec.model_validate(data["stages"]), from_json(data["observation"]))


@dataclass(frozen=True)
class RewardPreprocessing:
    """The stages for rewards."""

    stages: spec.RewardPreprocessingSpec

    @property
    def normalizes(self) -> bool:
        """Whether the agent must scale the results by the running deviation of the return."""
        return any(isinstance(stage, spec.RunningStandardize) for stage in self.stages.root)

    @property
    def spans_rollout(self) -> bool:
        """Whether a result depends on all rewards of its rollout, so that the agent must learn from rollouts."""
        return any(isinstance(stage, spec.Standardize) for stage in self.stages.root)

    def __call__(self, rewards: Any, xp: Any = np, average: Average | None = None) -> Any:
        """Rewards [T, N] of a rollout -> float32 [T, N]; any shape unless it spans the rollout.

        `average` takes the mean over all devices if the rollout is spread over several.
        """
        x = xp.asarray(rewards).astype(np.float32)
        for stage in self.stages.root:
            match stage:
                case spec.Clip():
                    x = xp.clip(x, np.float32(stage.min_value), np.float32(stage.max_value))
                case spec.Divide():
                    x = x / np.float32(stage.scale)
                case spec.Standardize():
                    x = _standardized(x, tuple(range(x.ndim)), xp, average)
        return x


@dataclass(frozen=True)
class Stack:
    """A sequence: stacks the last `length` frames [N, *frame] of each environment to [N, *shape]."""

    name: str
    frame: Shape
    length: int
    adds_axis: bool
    dtype: str

    @property
    def shape(self) -> Shape:
        """The shape of one stack."""
        lead, last = (self.frame, 1) if self.adds_axis else (self.frame[:-1], self.frame[-1])
        return (*lead, last * self.length)

    def __call__(self, frames: Any, before: Any, is_first: Any, xp: Any = np) -> Any:
        """The stacks [N, *shape] with the next frames; at the beginning of an episode, copies of its first frame."""
        frames = frames[..., None] if self.adds_axis else frames
        width = frames.shape[-1]
        if xp is not np:
            going = xp.concatenate([before[..., width:], frames], axis=-1)
            is_first = is_first.reshape((-1,) + (1,) * (going.ndim - 1))
            return xp.where(is_first, self.filled(frames, xp), going)
        after = np.empty_like(before)
        _copy_columns(before[..., width:], after[..., :-width])
        _copy_columns(frames, after[..., -width:])
        if np.any(is_first):
            after[is_first] = self.filled(frames[is_first])
        return after

    def filled(self, frames: Any, xp: Any = np) -> Any:
        """Copies of each frame [..., width] along the last axis."""
        return xp.concatenate([frames] * self.length, axis=-1)


@dataclass(frozen=True)
class Reshape:
    """The same numbers as [N, *shape]."""

    shape: Shape

    def __call__(self, x: Any, xp: Any = np) -> Any:
        """[N, ...] -> [N, *shape]."""
        return x.reshape((x.shape[0], *self.shape))


@dataclass(frozen=True)
class Scale:
    """Converts to floats, divided by `scale`."""

    scale: float

    def __call__(self, x: Any, xp: Any = np) -> Any:
        """[N, ...] -> float32 [N, ...]."""
        x = x.astype(np.float32)
        return x if self.scale == 1 else x / np.float32(self.scale)


@dataclass(frozen=True)
class Hold:
    """Converts to floats, clipped to bounds."""

    low: float
    high: float

    def __call__(self, x: Any, xp: Any = np) -> Any:
        """[N, ...] -> float32 [N, ...]."""
        return xp.clip(x.astype(np.float32), np.float32(self.low), np.float32(self.high))


@dataclass(frozen=True)
class Center:
    """Converts to floats with mean 0 and deviation 1 in each observation."""

    def __call__(self, x: Any, xp: Any = np) -> Any:
        """[N, ...] -> float32 [N, ...]."""
        return _standardized(x.astype(np.float32), tuple(range(1, x.ndim)), xp)


@dataclass(frozen=True)
class Stretch:
    """Converts to floats scaled to 0 .. 1 in each observation."""

    def __call__(self, x: Any, xp: Any = np) -> Any:
        """[N, ...] -> float32 [N, ...]."""
        x = x.astype(np.float32)
        axes = tuple(range(1, x.ndim))
        least = x.min(axes, keepdims=True)
        return (x - least) / (x.max(axes, keepdims=True) - least + EPSILON)


Operation = Resampling | Stack | Reshape | Scale | Hold | Center | Stretch


def _plan(stages: tuple[spec.Stage, ...], space: Space) -> tuple[tuple[Operation, ...], Space]:
    """The operations and the space of their results; raises a SpecError that names the stage if one does not fit."""
    if not stages:
        return (), space
    if not isinstance(space, Box):
        raise SpecError("states_preprocessing computes with numbers, but the observations are choices; remove it")
    for part in space.parts:
        if part.is_bytes and not all(isinstance(stage, spec.RunningStandardize) for stage in stages):
            raise SpecError(
                f'states_preprocessing would take the bytes of "{part.name}" for plain numbers, because all parts of '
                "an observation are joined into one vector; remove it, or wrap the environment so that it has one part"
            )
    space = replace(space, dtype=_dtype(space))
    in_bytes = space.dtype == "uint8" and _stay_bytes(stages)
    numbered = [(i, stage) for i, stage in enumerate(stages) if not (in_bytes and isinstance(stage, spec.Divide))]
    operations: list[Operation] = []
    for is_image, run in groupby(numbered, lambda each: isinstance(each[1], spec.ImageResize | spec.Grayscale)):
        if is_image:
            image_operation, space = resampling(run, space, in_bytes)
            operations.append(image_operation)
            continue
        for index, stage in run:
            operation, space = _operation(index, stage, space)
            operations.append(operation)
    return tuple(operations), space


def _dtype(space: Space) -> str:
    return "uint8" if space.dtype == "uint8" else "float32"


def _stay_bytes(stages: tuple[spec.Stage, ...]) -> bool:
    """Whether bytes can stay bytes through all stages, if the network does the division by 255."""
    for stage in stages:
        match stage:
            case spec.Divide() if stage.scale != BYTE_SCALE:
                return False
            case spec.Grayscale() if min(stage.weights) < 0 or sum(stage.weights) > 1 + 1e-6:
                return False
            case spec.Clip() | spec.Standardize() | spec.Normalize() | spec.RunningStandardize():
                return False
    return sum(isinstance(stage, spec.Divide) for stage in stages) <= 1


def _operation(index: int, stage: spec.Stage, space: Box) -> tuple[Operation, Box]:
    """One stage that is not about images, and the space after it."""
    low, high = space.bounds()
    match stage:
        case spec.Sequence():
            stack = Stack(f"{index}_sequence", space.shape, stage.length, stage.add_rank, space.dtype)
            low, high = (stack.filled(bound[..., None] if stage.add_rank else bound) for bound in (low, high))
            return stack, box_within(low, high, space.dtype)
        case spec.FlattenStage() if len(space.shape) == 1:
            return Reshape(space.shape), space
        case spec.FlattenStage():
            return Reshape((space.size,)), box_within(low.reshape(-1), high.reshape(-1), space.dtype)
        case spec.ExpandDims():
            rank = len(space.shape)
            if not -rank - 1 <= stage.axis <= rank:
                refuse(index, stage, f"gets shape {space.shape}", f"its axis must lie in {-rank - 1} .. {rank}")
            low, high = (np.expand_dims(bound, stage.axis) for bound in (low, high))
            return Reshape(low.shape), box_within(low, high, space.dtype)
        case spec.Divide():
            return Scale(stage.scale), box_within(low / stage.scale, high / stage.scale, "float32")
        case spec.Clip():
            low, high = (np.clip(bound, stage.min_value, stage.max_value) for bound in (low, high))
            return Hold(stage.min_value, stage.max_value), box_within(low, high, "float32")
        case spec.Standardize() | spec.Normalize():
            if space.size < 2:
                way_out = 'use "running_standardize", which compares it with earlier ones'
                refuse(index, stage, "makes 0 of every observation that is a single number", way_out)
            if isinstance(stage, spec.Normalize):
                return Stretch(), Box(space.shape, (0.0,), (1.0,))
            # The extreme case is one number that differs from n - 1 equal ones.
            largest = sqrt(space.size - 1)
            return Center(), Box(space.shape, (-largest,), (largest,))
        case spec.RunningStandardize():
            if space.is_image:
                refuse(index, stage, f"gets an image of shape {space.shape}", "remove it; the network scales images")
            return Scale(1.0), replace(space, dtype="float32")
    raise AssertionError(stage)


def _standardized(x: Any, axes: tuple[int, ...], xp: Any, average: Average | None = None) -> Any:
    """Mean 0 and deviation 1 over the axes."""
    average = average or (lambda x: x)
    x = x - average(x.mean(axes, keepdims=True))
    return x / xp.maximum(xp.sqrt(average((x * x).mean(axes, keepdims=True))), EPSILON)


def _copy_columns(source: np.ndarray, target: np.ndarray) -> None:
    """Copies [..., width]: a few long strided copies are many times faster than a short one for each pixel."""
    if source.ndim == 2 or source.shape[-1] > MOST_STRIDED_COPIES:
        target[...] = source
        return
    for column in range(source.shape[-1]):
        target[..., column] = source[..., column]
