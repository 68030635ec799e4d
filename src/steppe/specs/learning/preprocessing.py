"""Preprocessing as lists of stages: `["grayscale", {"type": "sequence", "length": 4}]`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, ConfigDict, Field, model_validator

from steppe.specs._base import Count, ListSpec, Number, Positive, Spec


def _on_last_axis(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if value == -1:
            return True
        raise ValueError("the new axis is the last one: true (or -1) adds it, false does not")
    return value


def _kept(reset: bool) -> bool:
    if reset:
        raise ValueError(
            "statistics that are forgotten again and again would make the same value look different each time; "
            "leave reset_after_batch out"
        )
    return reset


def _each_its_own(axis: int | None) -> int | None:
    if axis not in (None, 0):
        raise ValueError("each number has its own statistics over everything seen so far; leave axis out")
    return axis


def _not_black(weights: tuple[float, ...]) -> tuple[float, ...]:
    if not any(weights):
        raise ValueError("at least one colour must count")
    return weights


class Sequence(Spec):
    """The last few observations together, so that one observation shows motion."""

    type: Literal["sequence"]
    length: Count = 2
    """The number of observations, the oldest first; an episode begins with copies of its first one."""
    add_rank: Annotated[bool, BeforeValidator(_on_last_axis)] = False
    """Whether they lie along a new last axis; otherwise they are joined along the existing last axis."""


class Standardize(Spec):
    """Shifts and scales an observation by its own mean and deviation."""

    type: Literal["standardize"]
    across_batch: bool = False
    """Only for rewards, for which it must be true: mean and deviation are those of the whole rollout."""


class RunningStandardize(Spec):
    """Shifts and scales by the mean and deviation of everything seen so far; rewards are scaled only."""

    type: Literal["running_standardize"]
    axis: Annotated[int | None, AfterValidator(_each_its_own)] = None
    """It must be 0 or left out: each number has its own statistics."""
    reset_after_batch: Annotated[bool, AfterValidator(_kept)] = False
    """It must be false or left out: the statistics are kept."""


class Normalize(Spec):
    """Maps an observation's own smallest number to 0 and its largest to 1."""

    type: Literal["normalize"]


class Grayscale(Spec):
    """Converts an image of height x width x 3 colours to grey."""

    type: Literal["grayscale"]
    weights: Annotated[tuple[Number, ...], Field(min_length=3, max_length=3), AfterValidator(_not_black)] = (
        0.299,
        0.587,
        0.114,
    )
    """The weights of red, green and blue."""
    remove_rank: bool = False
    """Whether the axis of the colours is removed; otherwise it keeps length 1."""


class ImageResize(Spec):
    """Resizes an image."""

    type: Literal["image_resize"]
    width: Count
    """The new width in pixels."""
    height: Count
    """The new height in pixels."""


class Divide(Spec):
    """Divides every number."""

    type: Literal["divide"]
    scale: Positive = Field(validation_alias=AliasChoices("scale", "value"))
    """The divisor; also spelled `value`."""


class Clip(Spec):
    """Clips every number to bounds."""

    type: Literal["clip"]
    min_value: Number = Field(validation_alias=AliasChoices("min_value", "min"))
    """The lower bound; also spelled `min`."""
    max_value: Number = Field(validation_alias=AliasChoices("max_value", "max"))
    """The upper bound; also spelled `max`."""

    @model_validator(mode="after")
    def _in_order(self) -> Clip:
        if self.min_value >= self.max_value:
            raise ValueError("min_value must be less than max_value")
        return self


class FlattenStage(Spec):
    """Flattens all axes of an observation into one."""

    type: Literal["flatten"]


class ExpandDims(Spec):
    """Adds an axis of length 1."""

    type: Literal["expand_dims"]
    axis: Annotated[int, Field(strict=True)] = -1
    """The position of the new axis among those of one observation; -1 is the end."""


Stage = Annotated[
    Sequence
    | Standardize
    | RunningStandardize
    | Normalize
    | Grayscale
    | ImageResize
    | Divide
    | Clip
    | FlattenStage
    | ExpandDims,
    Field(discriminator="type", title="preprocessing stage"),
]

_ONE_NUMBER = {
    "sequence": "and agents learn from one at a time; remove this stage",
    "grayscale": "not an image; remove this stage",
    "image_resize": "not an image; remove this stage",
    "flatten": "without axes; remove this stage",
    "expand_dims": "without axes; remove this stage",
    "normalize": 'always 0 by its own minimum and maximum; use "clip" or "running_standardize"',
    "standardize": 'always 0 by its own mean; set across_batch to true, or use "running_standardize"',
}


def _for_observations(stage: Stage) -> Stage:
    if isinstance(stage, Standardize) and stage.across_batch:
        raise ValueError(
            "what an observation becomes must not depend on others beside it, since a policy also acts on one alone; "
            'leave across_batch out, or use "running_standardize"'
        )
    return stage


def _for_rewards(stage: Stage) -> Stage:
    is_batch = isinstance(stage, Standardize) and stage.across_batch
    if stage.type in _ONE_NUMBER and not is_batch:
        raise ValueError(f"a reward is one number, {_ONE_NUMBER[stage.type]}")
    return stage


def _running_last(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    if any(isinstance(stage, RunningStandardize) for stage in stages[:-1]):
        raise ValueError(
            'the agent keeps the statistics of "running_standardize", after all other stages; make it the last one'
        )
    return stages


def _one_standard(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    if len({stage.type for stage in stages} & {"standardize", "running_standardize"}) > 1:
        raise ValueError('"standardize" and "running_standardize" undo each other; keep one of them')
    return stages


class PreprocessingSpec(ListSpec[tuple[Stage, ...]]):
    """The stages that prepare an observation for the network, first to last.

    A bare word `"grayscale"` means `{"type": "grayscale"}`, and one stage a list of one.
    """

    model_config = ConfigDict(frozen=True)
    root: Annotated[tuple[Annotated[Stage, AfterValidator(_for_observations)], ...], AfterValidator(_running_last)]

    @model_validator(mode="before")
    @classmethod
    def _understand(cls, written: Any) -> Any:
        return _listed(written)


class RewardPreprocessingSpec(ListSpec[tuple[Stage, ...]]):
    """The stages that prepare a reward for learning, first to last; spelled as for observations."""

    model_config = ConfigDict(frozen=True)
    root: Annotated[
        tuple[Annotated[Stage, AfterValidator(_for_rewards)], ...],
        AfterValidator(_running_last),
        AfterValidator(_one_standard),
    ]

    @model_validator(mode="before")
    @classmethod
    def _understand(cls, written: Any) -> Any:
        return _listed(written)


def _listed(written: Any) -> Any:
    """The stages as a list of objects."""
    if isinstance(written, str | dict):
        written = [written]
    if not isinstance(written, list | tuple):
        return written
    return tuple({"type": stage} if isinstance(stage, str) else stage for stage in written)
