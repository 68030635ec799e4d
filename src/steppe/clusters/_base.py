"""The interface of a provider of clusters, and the record of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from steppe.errors import ClusterError
from steppe.specs.running.cluster import ClusterSpec

State = Literal["creating", "ready", "deleting", "broken", "gone", "unknown"]
"""The state of a cluster; "gone" if its provider does not know it any more."""
Tell = Callable[[str], None]
"""Takes a line about the progress of a long operation."""

ID_LABEL = "steppe-id"
"""The label of a cloud's cluster that distinguishes it from another of the same name."""
MANAGED = ("managed-by", "steppe")
"""The label of every cluster that Steppe made."""
STEP_SECONDS = 45 * 60.0
"""How long a cloud may take for one step; the slowest, an EKS control plane, takes about 15 minutes."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""The pauses between two looks: short at first, for an operation that is nearly done, then longer."""
PROJECT, ACCOUNT = "PROJECT-ID", "ACCOUNT-ID"
"""The placeholders in a dry run for an unknown cloud project or account."""


@dataclass(frozen=True)
class Reachable:
    """How to reach a cluster: `kubeconfig` and `context` are for a Kubernetes client."""

    name: str
    """Steppe's name for it (`-c NAME`)."""
    kubeconfig: Path
    context: str
    namespace: str
    is_owned: bool
    """Whether Steppe made the cluster; a cluster that it did not make is never deleted with an experiment."""
    spec: ClusterSpec


@dataclass(frozen=True)
class Record:
    """The stored description of one cluster; it contains no secret."""

    name: str
    provider: str
    spec: ClusterSpec
    is_owned: bool
    id: str = ""
    """The value of ID_LABEL of the cloud's cluster, so that no other cluster of that name is taken for it."""
    state: State = "ready"
    created: float = 0.0
    place: dict[str, str] = field(default_factory=dict)
    """Its location in the provider's own terms, such as a cloud project and a zone."""
    made_for: str = ""
    """The run folder of the experiment that it was made for and is deleted with; empty for a shared cluster."""

    @property
    def where(self) -> str:
        """Its location in one word."""
        hidden = ("key", "profile", "kubeconfig")
        return "/".join(value for name, value in self.place.items() if name not in hidden)


@dataclass(frozen=True)
class ProviderRequest:
    """One request to a provider's API, or one command of its program."""

    call: str
    """`POST https://...`, or the command."""
    body: Any = None


@dataclass(frozen=True)
class ObservedCluster:
    """A cluster as its provider describes it."""

    name: str
    state: State
    id: str = ""
    """The value of ID_LABEL; empty if Steppe did not make it."""
    num_nodes: int | None = None
    version: str = ""
    place: dict[str, str] = field(default_factory=dict)
    reason: str = ""


class Provider(Protocol):
    """One kind of cloud or program that runs clusters."""

    name: str
    is_deletable: bool
    """Whether the provider can delete a cluster; if not, Steppe only forgets it."""

    def place(self, spec: ClusterSpec) -> dict[str, str]:
        """The location of a cluster of this spec in the provider's own terms; UserError if it cannot be made."""

    def requests(self, record: Record) -> list[ProviderRequest]:
        """The requests of `create` in order; nothing is sent."""

    def create(self, record: Record, tell: Tell) -> None:
        """Makes the cluster, or resumes making it, and returns when it is ready."""

    def look(self, record: Record) -> ObservedCluster:
        """The cluster as it is now; its state is "gone" if there is none."""

    def discover(self) -> list[ObservedCluster]:
        """Every visible cluster, whether Steppe made it or not; none if the provider is not set up."""

    def delete(self, record: Record, tell: Tell) -> None:
        """Deletes the cluster and everything made for it, and returns when it is gone."""

    def kubeconfig(self, record: Record) -> dict[str, Any]:
        """The content of a kubeconfig file whose current context is the cluster."""


def wait_for(progress: Callable[[], str | None], what: str, tell: Tell, *, seconds: float = STEP_SECONDS) -> None:
    """Waits until `progress` returns None; until then each new sentence is passed to `tell`."""
    last, begin, pause = "", time.monotonic(), FIRST_PAUSE
    while (sentence := progress()) is not None:
        if sentence != last:
            tell(sentence)
            last = sentence
        if time.monotonic() - begin > seconds:
            raise ClusterError(
                f"{what} took longer than {seconds / 60:.0f} min ({sentence}); it may still come to an end: "
                'see "steppe cluster list", and run the same command again to go on waiting'
            )
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)
