"""The registered clusters: one small file each in the user's settings, so that all projects share them."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from pathlib import Path
from typing import Any

from steppe.clusters._base import Provider, Reachable, Record
from steppe.errors import ClusterError, UserError
from steppe.files.durable import storing, sync_folder, temporary_name
from steppe.specs.loading.files import read_spec_file
from steppe.specs.loading.suggestions import did_you_mean
from steppe.specs.loading.validation import validate
from steppe.specs.running.cluster import ClusterSpec

FOLDER_VARIABLE = "STEPPE_CLUSTERS"
"""The environment variable that names another folder for the records of clusters."""
# The names that every provider accepts; Google is the strictest.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")


def find(name: str) -> Reachable:
    """How to reach the cluster of that name; an error suggests the nearest registered name."""
    record = read(name)
    if record.state != "ready":
        way_out = {
            "creating": f"go on making it with: steppe cluster create -n {name}",
            "deleting": f"go on with: steppe cluster delete -c {name}",
        }.get(record.state, "see: steppe cluster list")
        raise ClusterError(f'cluster "{name}" is not ready (it is {record.state}); {way_out}')
    return reach(record)


def reach(record: Record) -> Reachable:
    """How to reach a cluster that is ready, by the user's own kubeconfig or by one that Steppe writes."""
    from steppe.clusters import kubeconfig

    if record.provider == kubeconfig.NAME:
        path, context = Path(record.place["kubeconfig"]), record.place["context"]
        content = kubeconfig.read(path)
    else:
        path = kubeconfig_path(record.name)
        content = kubeconfig.read(path) if path.exists() else write_kubeconfig(record)
        context = content["current-context"]
    namespace = record.spec.namespace or kubeconfig.namespace_of(content, context) or "default"
    return Reachable(record.name, path, context, namespace, record.is_owned, record.spec)


@functools.cache
def provider(name: str) -> Provider:
    """The only instance of the provider of that name; its client library is imported when it is used."""
    from steppe.clusters.eks import Eks
    from steppe.clusters.gke import Gke
    from steppe.clusters.kind import K3d, Kind
    from steppe.clusters.kubeconfig import Kubeconfig

    made: dict[str, Provider] = {each.name: each for each in (Gke(), Eks(), Kind(), K3d(), Kubeconfig())}
    return made[name]


def token(name: str) -> tuple[str, str | None]:
    """(a new token for a cloud's cluster, its expiry)."""
    record = read(name)
    make = getattr(provider(record.provider), "token", None)
    if make is None:
        raise UserError(f'cluster "{name}" ({record.provider}) is opened by its kubeconfig, and needs no token')
    made: tuple[str, str | None] = make(record)
    return made


def names() -> list[str]:
    """The names of all registered clusters."""
    root = folder()
    return sorted(path.stem for path in root.glob("*.json") if _NAME.fullmatch(path.stem)) if root.is_dir() else []


def knows(name: str) -> bool:
    """Whether a cluster of that name is registered."""
    return _NAME.fullmatch(hyphenated(name)) is not None and _path(name).is_file()


def read(name: str) -> Record:
    """The record of a cluster."""
    if not knows(name):
        others = names()
        listing = '; "steppe cluster list" shows those there are' if others else '; make one: "steppe cluster create"'
        raise UserError(f'no cluster "{name}"{did_you_mean(name, others) or listing}')
    path = _path(name)
    data = read_spec_file(path)
    try:
        fields: dict[str, Any] = {**data, "spec": validate(ClusterSpec, data["spec"], source=str(path), path="spec")}
        known = {field.name for field in dataclasses.fields(Record)}
        return Record(**{key: value for key, value in fields.items() if key in known})
    except (TypeError, KeyError):
        raise ClusterError(
            f'{path} does not describe a cluster; delete that file and register the cluster "{name}" again'
        ) from None


def write(record: Record) -> None:
    """Stores the record of a cluster."""
    valid_name(record.name)
    data = dataclasses.asdict(dataclasses.replace(record, spec=None))  # type: ignore[arg-type]
    data["spec"] = record.spec.model_dump(mode="json", exclude_none=True)
    _write_private(_path(record.name), json.dumps(data, indent=2) + "\n")


def forget(name: str) -> None:
    """Removes the record of a cluster, and the kubeconfig that Steppe wrote for it."""
    for path in (kubeconfig_path(name), _path(name)):
        with storing(path):
            path.unlink(missing_ok=True)


def write_kubeconfig(record: Record) -> dict[str, Any]:
    """Writes and returns the kubeconfig of a cluster that a provider made."""
    import yaml

    content = provider(record.provider).kubeconfig(record)
    _write_private(kubeconfig_path(record.name), yaml.safe_dump(content, sort_keys=False))
    return content


def kubeconfig_path(name: str) -> Path:
    """The path of the kubeconfig of a cluster that Steppe made."""
    return folder() / f"{hyphenated(name)}.kubeconfig"


def folder() -> Path:
    """The folder of all records."""
    if os.environ.get(FOLDER_VARIABLE):
        return Path(os.environ[FOLDER_VARIABLE]).expanduser().absolute()
    settings = os.environ.get("XDG_CONFIG_HOME")
    return (Path(settings) if settings else Path.home() / ".config") / "steppe" / "clusters"


def hyphenated(name: str) -> str:
    """A name from a file as a valid name of a cluster: file names have "_", which no cloud accepts."""
    return name.replace("_", "-")


def valid_name(name: str) -> str:
    """The name if every provider accepts it; else UserError with the rules."""
    if not _NAME.fullmatch(name):
        valid = hyphenated(name)
        raise UserError(
            f'wrong cluster name "{name}"; a name is made of lower-case letters, digits and "-", begins with a letter, '
            'does not end in "-", and has at most 40 characters'
            + (f'; did you mean "{valid}"?' if _NAME.fullmatch(valid) else "")
        )
    return name


def _path(name: str) -> Path:
    return folder() / f"{hyphenated(name)}.json"


def _write_private(path: Path, text: str) -> None:
    """Writes a file atomically that only the user may read: the kubeconfig of a local cluster holds its keys."""
    temporary = path.parent / temporary_name(path.name)
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
