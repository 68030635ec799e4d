"""What a provider of clusters does, and what is remembered of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from steppe.errors import ClusterError
from steppe.specs.running.cluster import ClusterSpec

State = Literal["creating", "ready", "deleting", "broken", "gone", "unknown"]
"""Where a cluster stands; "gone" is one that its provider does not know any more."""
Tell = Callable[[str], None]
"""Takes a line that says how far a long piece of work has come."""

ID_LABEL = "steppe-id"
"""The label of a cloud's cluster that tells it from another of the same name that somebody else made."""
MANAGED = ("managed-by", "steppe")
"""The label that every cluster has which Steppe made."""
PATIENCE = 45 * 60.0
"""How many seconds a cloud gets for one step; the slowest of them, an EKS control plane, takes about 15 minutes."""
PROJECT, ACCOUNT = "PROJECT-ID", "ACCOUNT-ID"
"""What a dry run writes where it is not known which cloud project or account a cluster would be made in."""


@dataclass(frozen=True)
class Reachable:
    """All that is needed to talk to a cluster: give `kubeconfig` and `context` to a Kubernetes client."""

    name: str
    """Steppe's name for it (`-c NAME`)."""
    kubeconfig: Path
    context: str
    namespace: str
    is_owned: bool
    """Whether Steppe made the cluster; one that it did not make is never deleted with an experiment."""
    spec: ClusterSpec


@dataclass(frozen=True)
class Record:
    """What Steppe remembers of one cluster; never a secret."""

    name: str
    provider: str
    spec: ClusterSpec
    is_owned: bool
    id: str = ""
    """What the cloud's cluster is labelled with, so that only this very cluster is taken for Steppe's own."""
    state: State = "ready"
    created: float = 0.0
    place: dict[str, str] = field(default_factory=dict)
    """The provider's own words for where it is, such as a cloud project and a location."""
    made_for: str = ""
    """The run folder of the experiment that it was made for, and ends with; empty for a cluster of its own right."""

    @property
    def where(self) -> str:
        """Its place in one word."""
        hidden = ("key", "profile", "kubeconfig")
        return "/".join(value for name, value in self.place.items() if name not in hidden)


@dataclass(frozen=True)
class ProviderRequest:
    """One request to a provider's API, or one command of its program, as it would be sent."""

    call: str
    """`POST https://...`, or the command."""
    body: Any = None


@dataclass(frozen=True)
class ObservedCluster:
    """A cluster as its provider shows it."""

    name: str
    state: State
    id: str = ""
    """What it is labelled with where Steppe made it."""
    num_nodes: int | None = None
    version: str = ""
    place: dict[str, str] = field(default_factory=dict)
    reason: str = ""


class Provider(Protocol):
    """One kind of place where clusters are."""

    name: str
    is_deletable: bool
    """Whether the provider can delete a cluster; if not, Steppe only forgets it."""

    def place(self, spec: ClusterSpec) -> dict[str, str]:
        """Where a cluster of this spec would be, in the provider's own words; refuses a spec it cannot make."""

    def requests(self, record: Record) -> list[ProviderRequest]:
        """What `create` sends, in order; nothing is sent."""

    def create(self, record: Record, tell: Tell) -> None:
        """Makes the cluster, or goes on making it, and returns when it is ready."""

    def look(self, record: Record) -> ObservedCluster:
        """The cluster as it is now; its state is "gone" where there is none."""

    def discover(self) -> list[ObservedCluster]:
        """Every cluster that can be seen there, whoever made it; nothing where the provider is not set up."""

    def delete(self, record: Record, tell: Tell) -> None:
        """Deletes the cluster and what was made for it, and returns when it is gone."""

    def kubeconfig(self, record: Record) -> dict[str, Any]:
        """How to reach it, as the content of a kubeconfig file whose current context is the one to use."""


def wait_for(ask: Callable[[], str | None], what: str, tell: Tell, *, seconds: float = PATIENCE) -> None:
    """Asks until `ask` says None (it is done); what it says until then is told whenever it changes."""
    told, begin = "", time.monotonic()
    for pause in _pauses():
        said = ask()
        if said is None:
            return
        if said != told:
            tell(said)
            told = said
        if time.monotonic() - begin > seconds:
            raise ClusterError(
                f"{what} took longer than {seconds / 60:.0f} min ({said}); it may still come to an end: "
                'see "steppe cluster list", and run the same command again to go on waiting'
            )
        time.sleep(pause)


def _pauses() -> Iterator[float]:
    """Short at first, for what is nearly done already; then as slow as a cloud is."""
    pause = 0.1
    while True:
        yield pause
        pause = min(pause * 1.5, 10.0)
