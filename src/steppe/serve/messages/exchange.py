"""The data types that go into an endpoint and come out of it, the same for every protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from steppe.errors import SteppeError, UserError


class NotFound(UserError):
    """The model, version, request or episode of that name does not exist here: HTTP 404."""


class Unavailable(SteppeError):
    """The endpoint cannot do this now; the same may work later: HTTP 503."""


@dataclass(frozen=True, slots=True)
class Question:
    """One inference request; `Endpoint.check` makes its observations."""

    observations: np.ndarray
    """[B, ...] in the policy's type and shape."""
    id: str | None = None
    """The client's name for the request (Seldon: puid); the endpoint makes one if it is missing."""
    sequence_id: str | None = None
    """The client's name for the episode. Its route is chosen once, and a recurrent policy's state is kept for it."""
    sequence_start: bool = False
    sequence_end: bool = False
    deterministic: bool | None = None
    """Whether to take the best action instead of drawing one; None: as the endpoint is configured."""
    model: str | None = None
    """The endpoint's own name, or that of one node of its graph, which is then asked without the routers above it."""
    version: str | None = None
    """The version of a policy to ask; None: the version in service."""
    outputs: bool = False
    """Whether to return the head's outputs (logits, means or values) too."""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """The actions of a policy, and how this policy was chosen."""

    id: str
    actions: np.ndarray
    """[B, ...] as the environment takes them."""
    route: tuple[tuple[str, int], ...]
    """(router's name, index of its branch) from the root downwards."""
    policy: str
    version: str
    propensity: float
    """The probability of this route at the time it was chosen."""
    outputs: np.ndarray | None = None
    """[B, outputs] if the question asked for them."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """A reward for a request (`id`) or an episode (`sequence_id`; with both, for one request of that episode)."""

    reward: float
    """Any finite number."""
    id: str | None = None
    sequence_id: str | None = None
    sequence_end: bool = False
    """Whether the episode is over with this reward."""
    feedback_id: str | None = None
    """Distinguishes another reward from a repeated one; without it a request, or a whole episode, is rewarded once."""
    truth: Any = None
    """The right answer, in plain JSON values; kept for people."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Confirms that a reward is on disk."""

    applied: bool
    """False for a repeated reward, which changes nothing."""
    id: str
    """The rewarded decision: the endpoint's name for its request or for the first request of its episode."""
    policy: str
    route: tuple[tuple[str, str], ...]
    """(router's name, its branch's name) from the root downwards."""
    episode_return: float
    """Sum of all rewards of this request or episode so far."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output of a model."""

    name: str
    datatype: str
    """In the Open Inference Protocol's terms: FP32, INT32, UINT8 ..."""
    shape: tuple[int, ...]
    """-1 means any number of rows."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """The description of a model that a client needs before it asks."""

    name: str
    versions: tuple[str, ...]
    """Newest last; () for a graph of several policies."""
    platform: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    ready: bool
    properties: dict[str, Any]
    """Other facts in plain JSON values: kind, policies, environment, spaces, whether recurrent."""


@dataclass(frozen=True, slots=True)
class BranchStanding:
    """Traffic and rewards of one branch of a router, or of one policy by itself."""

    name: str
    requests: int
    share: float
    """Share of its router's requests, 0 .. 1."""
    decisions: int
    """Episodes, and requests without an episode, that were sent here."""
    feedback: int
    """Those that are over and rewarded."""
    mean_reward: float | None
    """Mean return of those."""
    probability: float
    """Probability that the next episode is sent here, 0 .. 1."""
    is_best: bool
    """Whether no other branch of this router has a higher mean."""


@dataclass(frozen=True, slots=True)
class RouterStanding:
    """The branches of one router or A/B test."""

    name: str
    kind: str
    """"abtest" or "router"."""
    bandit: str | None
    branches: tuple[BranchStanding, ...]


@dataclass(frozen=True, slots=True)
class ShadowStanding:
    """A policy that is asked but whose answers are not used."""

    name: str
    policy: str
    requests: int
    mean_difference: float | None
    """Difference from the answers that were given: the share of other choices, or the mean distance of numbers."""
    failed: int


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """One policy and its versions."""

    name: str
    version: str
    """The version in service."""
    pinned: bool
    versions: tuple[str, ...]
    """The versions that can be asked for or pinned, newest last."""
    problem: str | None
    """Why the newest file is not in service."""
    requests: int
    feedback: int
    mean_reward: float | None


@dataclass(frozen=True, slots=True)
class EndpointStanding:
    """The current state of an endpoint, for its page and its metrics."""

    name: str
    routers: tuple[RouterStanding, ...]
    policies: tuple[PolicyStanding, ...]
    shadows: tuple[ShadowStanding, ...]
    open_episodes: int
    expired_episodes: int
    """Episodes that expired since the start, for lack of room or after a long silence."""
    queued: int
    """Records that are not on disk yet."""
    dropped: int
    """Decisions that were never written, since the ledger was away for too long."""
    ledger_problem: str | None
    """Why rewards are refused at the moment."""
