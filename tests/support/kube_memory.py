"""The one fake of the Kubernetes client: a namespace in memory, with hooks that simulate errors."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, Self

from steppe.platforms.kubernetes.client.kubeapi import API_PATHS, KubeAnswer, KubeError
from steppe.platforms.kubernetes.manifests import naming

Json = dict[str, Any]
KINDS = {plural: kind for kind, (_, plural) in API_PATHS.items()}
VERSION = {"gitVersion": "v1.33.1", "major": "1", "minor": "33"}


class MemoryKube:
    """Has the interface of `Kube`; Jobs make no Pods, and objects are deleted with their owners."""

    name, namespace = "lab", "space"

    def __init__(self, *objects: Json) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        for each in objects:
            self.objects[each["kind"], each["metadata"]["name"]] = each
        self.is_away = False
        """Whether the cluster cannot be reached."""
        self.after: Callable[[str, str], None] = lambda verb, kind: None
        """Called with verb and kind after each request is done; the client gets the exceptions that it raises."""
        self.answers: Callable[..., KubeAnswer] = lambda pod, path, **_: KubeAnswer(503, b"")
        """The answers of Pods."""
        self.state_of: Callable[[Json], Json | None] = lambda pod: None
        """The state of a Pod's own container; None leaves the Pod as it is."""
        self.requested: list[str] = []
        """The kind of each object or list that was read."""
        self.sent = 0
        """How many objects were sent in lists."""
        self.created: list[Json] = []
        self.deleted: list[str] = []
        """The kind of each object that was deleted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, kind: str, name: str) -> Json | None:
        self._reach()
        self.requested.append(kind)
        found = copy.deepcopy(self.objects.get((kind, name)))
        self.after("get", kind)
        if found is not None and kind == "Pod" and (state := self.state_of(found)) is not None:
            # The name of a Pod's own container is its role.
            container = found["metadata"]["labels"][naming.ROLE]
            found["status"] = {"containerStatuses": [{"name": container, "state": state}]}
        return found

    def listed(
        self, kind: str, labels: Mapping[str, str] | None = None, fields: str = "", limit: int = 0
    ) -> list[Json]:
        self._reach()
        self.requested.append(kind)
        wanted = (labels or {}).items()
        found = [
            each
            for (its, _), each in self.objects.items()
            if its == kind and wanted <= each["metadata"].get("labels", {}).items() and selects(fields, each)
        ]
        found = copy.deepcopy(found[: limit or None])
        self.sent += len(found)
        self.after("list", kind)
        return found

    def create(self, manifest: Json) -> Json:
        self._reach()
        key = (manifest["kind"], manifest["metadata"]["name"])
        if key in self.objects:
            raise KubeError("there is one", 409)
        self.created.append(manifest)
        number = len(self.created)
        self.objects[key] = copy.deepcopy(manifest)
        self.objects[key]["metadata"] |= {"uid": str(number), "creationTimestamp": f"{number:09}"}
        if manifest["kind"] == "Secret":
            self.objects[key]["data"] = {"door": "dA=="}
        self.after("create", manifest["kind"])
        return copy.deepcopy(self.objects[key])

    def create_or_keep(self, manifest: Json) -> Json:
        key = (manifest["kind"], manifest["metadata"]["name"])
        return self.objects[key] if key in self.objects else self.create(manifest)

    def patch(self, kind: str, name: str, changes: Json) -> Json:
        self._reach()
        found = self.objects[kind, name]
        annotations = changes.get("metadata", {}).get("annotations", {})
        found["metadata"]["annotations"] = found["metadata"].get("annotations", {}) | annotations
        for part in ("data", "binaryData"):
            merged = (found.get(part) or {}) | (changes.get(part) or {})
            found[part] = {key: value for key, value in merged.items() if value is not None}
        self.after("patch", kind)
        return copy.deepcopy(found)

    def delete(self, kind: str, name: str) -> None:
        self._reach()
        gone = self.objects.pop((kind, name), None)
        if gone is not None:
            self.deleted.append(kind)
            uid = gone["metadata"]["uid"]
            self.objects = {
                key: each
                for key, each in self.objects.items()
                if uid not in [owner["uid"] for owner in each["metadata"].get("ownerReferences", ())]
            }
        self.after("delete", kind)

    def wait_until_gone(self, kind: str, labels: Mapping[str, str], seconds: float = 0.0) -> list[str]:
        return [each["metadata"]["name"] for each in self.listed(kind, labels)]

    def ask(self, method: str, path: str, body: Json | None = None) -> KubeAnswer:
        """Answers every path: the version, a permission (always granted), or the list of a kind."""
        kind = KINDS.get(path.partition("?")[0].rpartition("/")[2], "")
        items = [each for (its, _), each in self.objects.items() if its == kind]
        return KubeAnswer(200, json.dumps({**VERSION, "status": {"allowed": True}, "items": items}).encode())

    def ask_pod(self, pod: str, port: int, path: str, **request: Any) -> KubeAnswer:
        return self.answers(pod, path, **request)

    def refused(self, answer: KubeAnswer, what: str) -> KubeError:
        return KubeError(f"{what}: {answer.body.decode()}", answer.code)

    @property
    def kinds(self) -> list[str]:
        """The kinds of all objects."""
        return sorted(kind for kind, _ in self.objects)

    def _reach(self) -> None:
        if self.is_away:
            raise KubeError("no answer")


def selects(fields: str, thing: Json) -> bool:
    """Whether a field selector selects an object: `a.b=value` and `a.b!=value`, separated by commas."""
    for each in fields.split(",") if fields else ():
        path, _, value = each.replace("!=", "=").partition("=")
        found: Any = thing
        for name in path.split("."):
            found = found.get(name, {})
        if (found == value) == ("!=" in each):
            return False
    return True
