"""What is done to observations before the network sees them and to rewards before the agent does, for NumPy and JAX.

| stage                 | one observation becomes                                                 | bytes stay bytes  |
|-----------------------|-------------------------------------------------------------------------|-------------------|
| image_resize          | the image in another size                                               | yes, rounded      |
| grayscale             | the weighted sum of its colours                                         | yes, rounded      |
| sequence              | the last few observations together, oldest first                        | yes               |
| flatten, expand_dims  | the same numbers in another shape                                       | yes               |
| divide by 255         | nothing, where all stages keep bytes: the network divides those by 255  | yes               |
| divide, clip          | each number divided or held within bounds                               | no: float32       |
| standardize           | each number minus their mean, by their deviation                        | no: float32       |
| normalize             | its numbers from 0 to 1                                                 | no: float32       |
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
from steppe.specs.learning.preprocessing import (
    Clip,
    Divide,
    ExpandDims,
    FlattenStage,
    Grayscale,
    ImageResize,
    Normalize,
    PreprocessingSpec,
    RewardPreprocessingSpec,
    RunningStandardize,
    Sequence,
    Stage,
    Standardize,
)
from steppe.specs.spaces import Box, Space, from_json, to_json

EPSILON = np.float32(1e-6)
"""The least deviation, and what is added to a range, so that equal numbers divide by more than 0."""
BYTE_SCALE = 255.0
"""What a network divides bytes by: see `steppe.policies.encoding.Encoding`."""
MOST_STRIDED_COPIES = 32

State = dict[str, Any]
"""What the sequences hold of each environment: arrays [N, ...]."""

Average = Callable[[Any], Any]


@dataclass(frozen=True)
class Preprocessing:
    """The stages for observations of one space; pure, and equal where stages and space are."""

    stages: PreprocessingSpec
    observation: Space
    """What environments give."""
    space: Space = field(init=False, compare=False)
    """What the agent gets."""
    operations: tuple[Operation, ...] = field(init=False, compare=False, repr=False)
    """The stages as they are carried out, which may be fewer."""

    def __post_init__(self) -> None:
        operations, space = _plan(self.stages.root, self.observation)
        object.__setattr__(self, "operations", operations)
        object.__setattr__(self, "space", space)

    @property
    def stacked_frames(self) -> tuple[int, int] | None:
        """(how many frames come out together, along which axis), where a sequence is the last stage."""
        last = self.operations[-1] if self.operations else None
        return (last.length, -1) if isinstance(last, Stack) else None

    @property
    def normalizes(self) -> bool:
        """Whether the agent is to normalise, by running statistics, what comes out."""
        return any(isinstance(stage, RunningStandardize) for stage in self.stages.root)

    @property
    def is_stateful(self) -> bool:
        """Whether a result depends on earlier observations."""
        return any(isinstance(operation, Stack) for operation in self.operations)

    def initial(self, lead: tuple[int, ...]) -> State:
        """The state before the first observation, leaves [*lead, ...]; {} where no stage needs any."""
        stacks = (operation for operation in self.operations if isinstance(operation, Stack))
        return {stack.name: np.zeros((*lead, *stack.shape), stack.dtype) for stack in stacks}

    def __call__(self, observations: Any, state: State, is_first: Any, xp: Any = np) -> tuple[Any, State]:
        """observations [N, ...] -> [N, *space.shape], and the state after them; neither may be changed in place.

        `is_first`, bool [N], says where an episode begins: there the state counts for nothing.
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
        return cls(PreprocessingSpec.model_validate(data["stages"]), from_json(data["observation"]))


@dataclass(frozen=True)
class RewardPreprocessing:
    """The stages for rewards."""

    stages: RewardPreprocessingSpec

    @property
    def normalizes(self) -> bool:
        """Whether the agent is to scale what comes out by the running deviation of the return."""
        return any(isinstance(stage, RunningStandardize) for stage in self.stages.root)

    @property
    def spans_rollout(self) -> bool:
        """Whether a result depends on all rewards of its rollout, which only agents that learn from rollouts have."""
        return any(isinstance(stage, Standardize) for stage in self.stages.root)

    def __call__(self, rewards: Any, xp: Any = np, average: Average | None = None) -> Any:
        """Rewards [T, N] of a rollout -> float32 [T, N]; any shape where it does not span the rollout.

        `average` takes the mean over all devices, where the rollout is spread over several.
        """
        x = xp.asarray(rewards).astype(np.float32)
        for stage in self.stages.root:
            match stage:
                case Clip():
                    x = xp.clip(x, np.float32(stage.min_value), np.float32(stage.max_value))
                case Divide():
                    x = x / np.float32(stage.scale)
                case Standardize():
                    x = _standardized(x, tuple(range(x.ndim)), xp, average)
        return x


@dataclass(frozen=True)
class Stack:
    """A sequence: keeps the last `length` frames [N, *frame] of each environment together, [N, *shape]."""

    name: str
    frame: Shape
    length: int
    adds_axis: bool
    dtype: str

    @property
    def shape(self) -> Shape:
        """Of one stack."""
        lead, last = (self.frame, 1) if self.adds_axis else (self.frame[:-1], self.frame[-1])
        return (*lead, last * self.length)

    def __call__(self, frames: Any, before: Any, is_first: Any, xp: Any = np) -> Any:
        """The stacks [N, *shape] after the next frames; copies of its own frame where an episode begins."""
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
    """Floats, divided by `scale`."""

    scale: float

    def __call__(self, x: Any, xp: Any = np) -> Any:
        """[N, ...] -> float32 [N, ...]."""
        x = x.astype(np.float32)
        return x if self.scale == 1 else x / np.float32(self.scale)


@dataclass(frozen=True)
class Hold:
    """Floats, held within bounds."""

    low: float
    high: float

    def __call__(self, x: Any, xp: Any = np) -> Any:
        """[N, ...] -> float32 [N, ...]."""
        return xp.clip(x.astype(np.float32), np.float32(self.low), np.float32(self.high))


@dataclass(frozen=True)
class Center:
    """Floats with mean 0 and deviation 1 in each observation."""

    def __call__(self, x: Any, xp: Any = np) -> Any:
        """[N, ...] -> float32 [N, ...]."""
        return _standardized(x.astype(np.float32), tuple(range(1, x.ndim)), xp)


@dataclass(frozen=True)
class Stretch:
    """Floats from 0 to 1 in each observation."""

    def __call__(self, x: Any, xp: Any = np) -> Any:
        """[N, ...] -> float32 [N, ...]."""
        x = x.astype(np.float32)
        axes = tuple(range(1, x.ndim))
        least = x.min(axes, keepdims=True)
        return (x - least) / (x.max(axes, keepdims=True) - least + EPSILON)


Operation = Resampling | Stack | Reshape | Scale | Hold | Center | Stretch


def _plan(stages: tuple[Stage, ...], space: Space) -> tuple[tuple[Operation, ...], Space]:
    """The operations and the space after them; a stage that cannot take what it gets is a SpecError that names it."""
    if not stages:
        return (), space
    if not isinstance(space, Box):
        raise SpecError("states_preprocessing computes with numbers, but the observations are choices; remove it")
    for part in space.parts:
        if part.is_bytes and not all(isinstance(stage, RunningStandardize) for stage in stages):
            raise SpecError(
                f'states_preprocessing would take the bytes of "{part.name}" for plain numbers, because all parts of '
                "an observation are joined into one vector; remove it, or wrap the environment so that it has one part"
            )
    space = replace(space, dtype=_dtype(space))
    in_bytes = space.dtype == "uint8" and _stay_bytes(stages)
    numbered = [(i, stage) for i, stage in enumerate(stages) if not (in_bytes and isinstance(stage, Divide))]
    operations: list[Operation] = []
    for is_image, run in groupby(numbered, lambda each: isinstance(each[1], ImageResize | Grayscale)):
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


def _stay_bytes(stages: tuple[Stage, ...]) -> bool:
    """Whether bytes can stay bytes through all stages, with a division by 255 left to the network."""
    for stage in stages:
        match stage:
            case Divide() if stage.scale != BYTE_SCALE:
                return False
            case Grayscale() if min(stage.weights) < 0 or sum(stage.weights) > 1 + 1e-6:
                return False
            case Clip() | Standardize() | Normalize() | RunningStandardize():
                return False
    return sum(isinstance(stage, Divide) for stage in stages) <= 1


def _operation(index: int, stage: Stage, space: Box) -> tuple[Operation, Box]:
    """One stage that is not about images, and the space after it."""
    low, high = space.bounds()
    match stage:
        case Sequence():
            stack = Stack(f"{index}_sequence", space.shape, stage.length, stage.add_rank, space.dtype)
            low, high = (stack.filled(bound[..., None] if stage.add_rank else bound) for bound in (low, high))
            return stack, box_within(low, high, space.dtype)
        case FlattenStage() if len(space.shape) == 1:
            return Reshape(space.shape), space
        case FlattenStage():
            return Reshape((space.size,)), box_within(low.reshape(-1), high.reshape(-1), space.dtype)
        case ExpandDims():
            rank = len(space.shape)
            if not -rank - 1 <= stage.axis <= rank:
                refuse(index, stage, f"gets shape {space.shape}", f"its axis must lie in {-rank - 1} .. {rank}")
            low, high = (np.expand_dims(bound, stage.axis) for bound in (low, high))
            return Reshape(low.shape), box_within(low, high, space.dtype)
        case Divide():
            return Scale(stage.scale), box_within(low / stage.scale, high / stage.scale, "float32")
        case Clip():
            low, high = (np.clip(bound, stage.min_value, stage.max_value) for bound in (low, high))
            return Hold(stage.min_value, stage.max_value), box_within(low, high, "float32")
        case Standardize() | Normalize():
            if space.size < 2:
                way_out = 'use "running_standardize", which compares it with earlier ones'
                refuse(index, stage, "makes 0 of every observation that is a single number", way_out)
            if isinstance(stage, Normalize):
                return Stretch(), Box(space.shape, (0.0,), (1.0,))
            # One number differs from n - 1 equal ones: no other set of numbers has a larger deviation.
            largest = sqrt(space.size - 1)
            return Center(), Box(space.shape, (-largest,), (largest,))
        case RunningStandardize():
            if space.is_image:
                refuse(index, stage, f"gets an image of shape {space.shape}", "remove it; the network scales images")
            return Scale(1.0), replace(space, dtype="float32")
    raise AssertionError(stage)


def _standardized(x: Any, axes: tuple[int, ...], xp: Any, average: Average | None = None) -> Any:
    """Mean 0 and deviation 1 over the axes."""
    average = average or _alone
    x = x - average(x.mean(axes, keepdims=True))
    return x / xp.maximum(xp.sqrt(average((x * x).mean(axes, keepdims=True))), EPSILON)


def _alone(x: Any) -> Any:
    return x


def _copy_columns(source: np.ndarray, target: np.ndarray) -> None:
    """Copies [..., width]: a few long strided copies are many times quicker than a short one for each pixel."""
    if source.ndim == 2 or source.shape[-1] > MOST_STRIDED_COPIES:
        target[...] = source
        return
    for column in range(source.shape[-1]):
        target[..., column] = source[..., column]
