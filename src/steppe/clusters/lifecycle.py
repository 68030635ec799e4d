"""Making and deleting clusters; for every provider, a cluster that Steppe did not make is deleted only by force."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from steppe.clusters import registry
from steppe.clusters._base import PROJECT, ObservedCluster, ProviderRequest, Reachable, Record, Tell
from steppe.clusters.settings import linked
from steppe.errors import ClusterError, SteppeError, UserError
from steppe.specs.loading.suggestions import did_you_mean, quoted
from steppe.specs.running.cluster import ClusterSpec

PROVIDERS = ("gke", "eks", "kind", "k3d", "kubeconfig")


@dataclass(frozen=True)
class ClusterEntry:
    """A cluster in a list."""

    record: Record
    seen: ObservedCluster
    is_known: bool
    """Whether Steppe has a record of it; another cluster of a provider can be deleted by force, but not used."""

    @property
    def is_deletable(self) -> bool:
        """Whether its provider can delete it; if not, it can only be forgotten."""
        return registry.provider(self.record.provider).is_deletable

    @property
    def where(self) -> str:
        """Its location in one word."""
        return self.record.where

    @property
    def state(self) -> str:
        """Its state now; "creating" before the provider shows it."""
        is_begun = self.record.state == "creating" and self.seen.state != "broken"
        return self.record.state if is_begun else self.seen.state

    @property
    def is_own(self) -> bool:
        """Whether Steppe made this cluster from here, or it is gone; another of the same name lacks the label."""
        is_same = self.seen.state == "gone" or self.seen.id == self.record.id
        return self.is_known and self.record.is_owned and is_same


def plan(spec: ClusterSpec, name: str | None = None, made_for: str = "", *, dry_run: bool = False) -> Record:
    """The record of a cluster to be made; nothing is made or stored. A dry run needs no cloud project."""
    if name is None and spec.name is None:
        raise UserError("the cluster has no name; give one with -n")
    name = name or registry.hyphenated(spec.name or "")
    registry.valid_name(name)
    chosen = _provider_of(spec)
    spec = spec.model_copy(update={"name": name, "provider": chosen})
    if dry_run and chosen == "gke" and spec.project is None and linked(Path.cwd()).project is None:
        spec = spec.model_copy(update={"project": PROJECT})
    if spec.subnets and chosen != "eks":
        raise UserError(f'subnets are a setting of provider "eks"; leave them out for "{chosen}"')
    provider = registry.provider(chosen)
    return Record(
        name,
        chosen,
        spec,
        is_owned=provider.is_deletable,
        id=secrets.token_hex(4),
        state="creating",
        created=time.time(),
        place=provider.place(spec),
        made_for=made_for,
    )


def requests(record: Record) -> list[ProviderRequest]:
    """The requests that `create` would send."""
    return registry.provider(record.provider).requests(record)


def create(record: Record, tell: Tell) -> Reachable:
    """Makes a planned cluster, or resumes making it after an interruption."""
    provider = registry.provider(record.provider)
    if registry.knows(record.name):
        record = _unfinished(record)
        seen = provider.look(record)
        if provider.is_deletable and seen.state != "gone" and seen.id != record.id:
            raise ClusterError(
                f'the cluster "{record.name}" at {record.provider} is not the one that Steppe began to make, but a '
                f"namesake; forget what was begun with: steppe cluster delete -c {record.name} --forget"
            )
    else:
        if provider.look(record).state != "gone" and provider.is_deletable:
            raise ClusterError(
                f'there is a cluster "{record.name}" at {record.provider} already that Steppe does not know; choose '
                "another name, or register it with --provider kubeconfig"
            )
        # Stored before the first request, so that an interrupted cluster can be found.
        registry.write(record)
    try:
        provider.create(record, tell)
    except SteppeError:
        _clean_up(record, tell)
        raise
    record = dataclasses.replace(record, state="ready")
    if provider.is_deletable:
        registry.write_kubeconfig(record)
    registry.write(record)
    return registry.reach(record)


def ensure(name: str, spec: ClusterSpec | None, tell: Tell, made_for: str = "") -> Reachable:
    """The cluster of that name; if there is none, it is made from `spec`, and belongs to the experiment `made_for`."""
    if spec is None or (registry.knows(name) and registry.read(name).state == "ready"):
        return registry.find(name)
    return create(plan(spec, name, made_for), tell)


def delete(entry: ClusterEntry, tell: Tell, *, force: bool = False) -> None:
    """Deletes a cluster and its record: by force if Steppe did not make it; never one of a kubeconfig."""
    record = entry.record
    provider = registry.provider(record.provider)
    if provider.is_deletable:
        check_deletable(entry, force)
        if entry.is_known:
            record = dataclasses.replace(record, state="deleting")
            registry.write(record)
        provider.delete(record, tell)
    if entry.is_known:
        registry.forget(record.name)


def forget(name: str) -> Record | None:
    """Removes the record of a cluster without asking its provider.

    Returns the record; None if it could not be read.
    """
    try:
        record = registry.read(name)
    except SteppeError:
        # A damaged record can still be forgotten.
        if not registry.knows(name):
            raise
        record = None
    registry.forget(name)
    return record


def check_deletable(entry: ClusterEntry, force: bool) -> None:
    """Raises UserError for a cluster that Steppe did not make, unless forced."""
    if force or entry.is_own or entry.seen.state == "gone":
        return
    name = entry.record.name
    if entry.is_known:
        raise UserError(
            f'the cluster "{name}" at {entry.record.provider} is not the one that Steppe made, but a namesake; '
            f"to delete it all the same: steppe cluster delete -c {name} --force"
        )
    raise UserError(
        f'cluster "{name}" at {entry.record.provider} was not made by Steppe from here; to delete it all the same: '
        f"steppe cluster delete -c {name} --force"
    )


def entry(name: str) -> ClusterEntry:
    """The cluster of that name, registered or found at a provider."""
    if registry.knows(name):
        record = registry.read(name)
        return ClusterEntry(record, registry.provider(record.provider).look(record), is_known=True)
    others, notes = _discovered(set())
    matching = [other for other in others if other.record.name == name]
    if len(matching) > 1:
        where = " and ".join(f"{each.record.provider} {each.where}".strip() for each in matching)
        raise UserError(
            f'there are {len(matching)} clusters "{name}": at {where}; delete it there with its own program'
        )
    if not matching and notes:
        raise ClusterError(
            f'cluster "{name}" is not known here, and not every provider can be asked: {"; ".join(notes)}'
        )
    if not matching:
        known = [*registry.names(), *(other.record.name for other in others)]
        listing = '; "steppe cluster list" shows those there are' if known else '; make one: "steppe cluster create"'
        raise UserError(f'no cluster "{name}"{did_you_mean(name, known) or listing}')
    return matching[0]


def entries() -> tuple[list[ClusterEntry], list[str]]:
    """(every cluster that is registered or visible, why some providers could not be asked)."""
    notes: list[str] = []
    records = []
    for name in registry.names():
        try:
            records.append(registry.read(name))
        except SteppeError as error:
            notes.append(str(error))
    with ThreadPoolExecutor(8) as pool:
        # A cloud that does not answer must not delay the others.
        looking = [(record, pool.submit(registry.provider(record.provider).look, record)) for record in records]
        found = []
        for record, future in looking:
            try:
                seen = future.result()
            except SteppeError as error:
                notes.append(str(error))
                # Its last state is assumed; a cluster in state "unknown" is not deleted.
                seen = ObservedCluster(record.name, "unknown", id=record.id, place=record.place)
            found.append(ClusterEntry(record, seen, is_known=True))
    others, more = _discovered({(each.record.provider, each.record.name) for each in found})
    return [*found, *others], [*notes, *(note for note in more if note not in notes)]


def _discovered(known: set[tuple[str, str]]) -> tuple[list[ClusterEntry], list[str]]:
    """(clusters that are visible at their providers but not registered, why some could not be asked)."""
    found, notes = [], []
    for name in PROVIDERS:
        try:
            seen = registry.provider(name).discover()
        except SteppeError as error:
            notes.append(str(error))
            continue
        for each in seen:
            if (name, each.name) not in known:
                record = Record(
                    each.name, name, ClusterSpec(name=each.name), False, each.id, each.state, 0.0, each.place
                )
                found.append(ClusterEntry(record, each, is_known=False))
    return found, notes


def _provider_of(spec: ClusterSpec) -> str:
    """The given provider, or the only one that fits the rest of the spec."""
    if spec.provider is not None:
        return spec.provider
    if spec.kubeconfig is not None or spec.context is not None:
        return "kubeconfig"
    if spec.project is not None or linked(Path.cwd()).project is not None:
        return "gke"
    raise UserError(f"the cluster has no provider; give --provider {quoted(PROVIDERS)}")


def _unfinished(planned: Record) -> Record:
    """The record of a cluster that is being made from the same spec; UserError if there is another of that name."""
    record = registry.read(planned.name)
    if record.state != "creating":
        raise UserError(
            f'there is a cluster "{record.name}" already ({record.provider}); choose another name, or remove it with: '
            f"steppe cluster delete -c {record.name}"
        )
    if record.spec != planned.spec or record.place != planned.place:
        raise UserError(
            f'cluster "{record.name}" is being made already, from another spec; go on with the same one, or remove '
            f"what there is of it with: steppe cluster delete -c {record.name}"
        )
    return record


def _clean_up(record: Record, tell: Tell) -> None:
    """After a failure without a cluster: deletes what was made for it, and its record."""
    provider = registry.provider(record.provider)
    with contextlib.suppress(SteppeError):
        if provider.look(record).state == "gone":
            with contextlib.suppress(UserError):
                provider.delete(record, tell)
            registry.forget(record.name)
