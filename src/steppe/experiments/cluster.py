"""The Python API of one cluster: `steppe.Cluster.create("small-cluster", name="first", provider="gke")`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.clusters import lifecycle, loading, registry
from steppe.errors import ClusterError, SteppeError, UserError

if TYPE_CHECKING:
    from steppe.clusters.lifecycle import ClusterEntry
    from steppe.platforms.kubernetes.diagnosis.storage_check import ClusterFinding

Tell = Callable[[str], None]
log = logging.getLogger("steppe.clusters")


@dataclass(frozen=True)
class ClusterStatus:
    """The state of a cluster, as its provider reports it."""

    state: str
    """Such as "creating", "ready", "broken", "unknown" or "gone"."""
    provider: str
    where: str
    """Its region, zone or context."""
    num_nodes: int | None
    version: str
    is_own: bool
    """Whether Steppe made it from here."""
    reason: str
    """The problem, if there is one."""


class Cluster:
    """A cluster by its name, known here or seen at a provider."""

    def __init__(self, name: str) -> None:
        """The cluster called `name`, which need not exist; `open` checks that."""
        self.name = registry.valid_name(name)

    @classmethod
    def create(
        cls, file: str | Path | None = None, *, name: str | None = None, tell: Tell = log.info, **fields: Any
    ) -> Cluster:
        """Makes a cluster, or registers an existing one (`context=...`), and waits until it is ready.

        `file` is a name in configs/clusters/ or a path; `fields` are those of a cluster file and override it:
        provider, num_nodes, machine_type and so on. `tell` gets a sentence on each step. An interrupted call continues
        when it is repeated with the same name.
        """
        if fields.get("kubeconfig") is not None:
            fields["kubeconfig"] = str(Path(fields["kubeconfig"]).expanduser().absolute())
        if file is None and not fields and name is not None and registry.knows(name):
            record = registry.read(name)
        else:
            record = lifecycle.plan(loading.load(file, fields, [], Path.cwd()), name)
        return cls(lifecycle.create(record, tell).name)

    @classmethod
    def open(cls, name: str) -> Cluster:
        """The cluster of that name; a UserError if there is none, here or at a provider that can be asked."""
        return cls(name if registry.knows(name) else lifecycle.entry(name).record.name)

    @classmethod
    def list(cls) -> list[Cluster]:
        """All clusters that are known here or seen at a provider; providers that cannot be asked are logged."""
        entries, notes = lifecycle.entries()
        for note in notes:
            log.warning(note)
        return [cls(entry.record.name) for entry in entries]

    def status(self) -> ClusterStatus:
        """The state of the cluster, for which its provider is asked."""
        entry = self._entry()
        seen, record = entry.seen, entry.record
        return ClusterStatus(
            entry.state, record.provider, entry.where, seen.num_nodes, seen.version, entry.is_own, seen.reason
        )

    def check(self, *, trial: bool = True, timeout: float = 300.0, tell: Tell = log.info) -> tuple[ClusterFinding, ...]:
        """Checks whether it can run experiments.

        Each finding has `.what`, `.outcome` ("ok", "failed" or "unknown"), `.sentence` and `.fix`. With
        `trial` a Pod with Steppe's image is run on it and removed again, which may take up to `timeout` seconds.
        """
        from steppe.platforms.kubernetes.client.kubeapi import Kube
        from steppe.platforms.kubernetes.diagnosis import cluster_check

        reachable = registry.find(self.name)
        with Kube(reachable.kubeconfig, reachable.context, reachable.namespace, reachable.name) as kube:
            return tuple(cluster_check.check(kube, reachable, tell, has_trial=trial, seconds=timeout))

    def delete(self, *, force: bool = False, tell: Tell = log.info) -> str:
        """Deletes the cluster with everything on it, or forgets a registered one; returns a note on leftovers.

        Without `force` this is refused if Steppe did not make it, or if experiments would be lost.
        """
        from steppe.platforms.kubernetes.client.cluster_deletion import delete_cluster, experiments_on

        entry = self._entry()
        if entry.is_deletable:
            lifecycle.check_deletable(entry, force)
        if not force:
            try:
                lost = experiments_on(entry)
            except SteppeError as error:
                raise ClusterError(
                    f'cluster "{self.name}" was not deleted, since it is not known whether experiments are on it: '
                    f"{error}; to delete it all the same, give force=True"
                ) from error
            if lost:
                raise UserError(
                    f'cluster "{self.name}" was not deleted, since experiments on it would be lost: {", ".join(lost)}; '
                    "download them first, or give them up with force=True"
                )
        return delete_cluster(entry, tell, force=force)

    def forget(self) -> None:
        """Removes it from the registered clusters; its provider is not asked and nothing changes there."""
        lifecycle.forget(self.name)

    def _entry(self) -> ClusterEntry:
        return lifecycle.entry(self.name)

    def __repr__(self) -> str:
        return f"Cluster({self.name!r})"
