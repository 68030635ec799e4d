"""What goes into an endpoint and what comes out of it, the same for every protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from steppe.errors import SteppeError, UserError


class NotFound(UserError):
    """The model, version, request or episode that was named is not known here: HTTP 404."""


class Unavailable(SteppeError):
    """It cannot be done now and may be tried again later: HTTP 503."""


@dataclass(frozen=True, slots=True)
class Question:
    """One inference request; `Endpoint.check` makes its observations."""

    observations: np.ndarray
    """[B, ...] in the policy's type and shape."""
    id: str | None = None
    """The request's own name (Seldon: puid); the endpoint makes one where there is none."""
    sequence_id: str | None = None
    """The episode: its route is decided once, and a recurrent policy's state is kept for it."""
    sequence_start: bool = False
    sequence_end: bool = False
    deterministic: bool | None = None
    """Whether the best action is taken instead of a drawn one; None leaves that to the endpoint."""
    model: str | None = None
    """The endpoint's own name, or that of one node of its graph, which is then asked past the routers above it."""
    version: str | None = None
    """The one version of a policy that is asked; None is the version in service."""
    outputs: bool = False
    """Whether the head's outputs (logits, means or values) are wanted too."""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """What a policy does, and why it was this policy."""

    id: str
    actions: np.ndarray
    """[B, ...] as the environment takes them."""
    route: tuple[tuple[str, int], ...]
    """(router's name, index of its branch) from the root downwards."""
    policy: str
    version: str
    propensity: float
    """The probability with which this route was chosen when it was chosen."""
    outputs: np.ndarray | None = None
    """[B, outputs], where they were asked for."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """A reward for a request (`id`) or an episode (`sequence_id`; with both, for one request of that episode)."""

    reward: float
    """Any finite number."""
    id: str | None = None
    sequence_id: str | None = None
    sequence_end: bool = False
    """Whether the episode is over with this."""
    feedback_id: str | None = None
    """What tells a repetition from another reward; without it a request, or a whole episode, is rewarded once."""
    truth: Any = None
    """What would have been right, in plain JSON values; kept for people."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A reward that is on the disk."""

    applied: bool
    """False for a repetition, which changes nothing."""
    id: str
    """The decision that was rewarded: what its request or its episode's first request was called by the endpoint."""
    policy: str
    route: tuple[tuple[str, str], ...]
    """(router's name, its branch's name) from the root downwards."""
    episode_return: float
    """All rewards of this request or episode so far."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output of a model."""

    name: str
    datatype: str
    """As the Open Inference Protocol calls it: FP32, INT32, UINT8 ..."""
    shape: tuple[int, ...]
    """-1 is any number of rows."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a client must know of a model before it asks."""

    name: str
    versions: tuple[str, ...]
    """The newest last; of a graph of several policies, its own names for them: ()."""
    platform: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    ready: bool
    properties: dict[str, Any]
    """The rest, in plain JSON values: kind, policies, environment, observation and action space, whether recurrent."""


@dataclass(frozen=True, slots=True)
class BranchStanding:
    """One branch of a router, or one policy by itself."""

    name: str
    requests: int
    share: float
    """Of its router's requests, 0 .. 1."""
    decisions: int
    """How many episodes, and requests without one, were sent here."""
    feedback: int
    """How many of them have been rewarded and are over."""
    mean_reward: float | None
    """The mean return of those."""
    probability: float
    """With which the next episode is sent here, 0 .. 1."""
    is_best: bool
    """Whether no other branch of this router has a higher mean."""


@dataclass(frozen=True, slots=True)
class RouterStanding:
    """One node of the graph that chooses."""

    name: str
    kind: str
    """abtest or router."""
    bandit: str | None
    branches: tuple[BranchStanding, ...]


@dataclass(frozen=True, slots=True)
class ShadowStanding:
    """A policy that is asked and whose answers are thrown away."""

    name: str
    policy: str
    requests: int
    mean_difference: float | None
    """From the answers that were given: the share of other choices, or the mean distance of numbers."""
    failed: int


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """One policy and its versions."""

    name: str
    version: str
    """In service."""
    pinned: bool
    versions: tuple[str, ...]
    """Those that can be asked for or pinned, the newest last."""
    problem: str | None
    """Why the newest file could not be taken into service."""
    requests: int
    feedback: int
    mean_reward: float | None


@dataclass(frozen=True, slots=True)
class EndpointStanding:
    """How an endpoint stands, for its page and its metrics."""

    name: str
    routers: tuple[RouterStanding, ...]
    policies: tuple[PolicyStanding, ...]
    shadows: tuple[ShadowStanding, ...]
    open_episodes: int
    expired_episodes: int
    """Since the start: the oldest, for want of room or after a long silence."""
    queued: int
    """What is not on the disk yet."""
    dropped: int
    """Decisions that were never written down, because the ledger was away for too long."""
    ledger_problem: str | None
    """Why rewards are refused at the moment."""
