"""A namespace in memory, as far as `Kube` asks an API server for one: objects, their owners, and what goes wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from steppe.platforms.kubernetes.client.kubeapi import Answer, KubeError

Json = dict[str, Any]


class MemoryKube:
    """Objects as they were made; Jobs make no Pods."""

    name, namespace = "lab", "space"

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.is_away = False
        """Whether it cannot be reached."""
        self.after: Callable[[str, str], None] = lambda verb, kind: None
        """Called with each verb and kind when it is done: what it raises is what the client sees of it."""
        self.answers: Callable[..., Answer] = lambda pod, path, **_: Answer(503, b"")
        """What Pods answer."""
        self._made = 0

    def get(self, kind: str, name: str) -> Json | None:
        self._reach()
        found = copy.deepcopy(self.objects.get((kind, name)))
        self.after("get", kind)
        return found

    def listed(
        self, kind: str, labels: Mapping[str, str] | None = None, fields: str = "", limit: int = 0
    ) -> list[Json]:
        self._reach()
        wanted = (labels or {}).items()
        found = [
            copy.deepcopy(each)
            for (its, _), each in self.objects.items()
            if its == kind and wanted <= each["metadata"].get("labels", {}).items()
        ]
        self.after("list", kind)
        return found[: limit or None]

    def create(self, manifest: Json) -> Json:
        self._reach()
        key = (manifest["kind"], manifest["metadata"]["name"])
        if key in self.objects:
            raise KubeError("there is one", 409)
        self._made += 1
        self.objects[key] = copy.deepcopy(manifest)
        self.objects[key]["metadata"] |= {"uid": str(self._made), "creationTimestamp": f"{self._made:09}"}
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
            uid = gone["metadata"]["uid"]
            self.objects = {
                key: each
                for key, each in self.objects.items()
                if uid not in [owner["uid"] for owner in each["metadata"].get("ownerReferences", ())]
            }
        self.after("delete", kind)

    def wait_until_gone(self, kind: str, labels: Mapping[str, str], seconds: float = 0.0) -> list[str]:
        return [each["metadata"]["name"] for each in self.listed(kind, labels)]

    def ask_pod(self, pod: str, port: int, path: str, **asked: Any) -> Answer:
        return self.answers(pod, path, **asked)

    def refused(self, answer: Answer, what: str) -> KubeError:
        return KubeError(f"{what}: {answer.body.decode()}", answer.code)

    @property
    def kinds(self) -> list[str]:
        """The kinds of all that there is."""
        return sorted(kind for kind, _ in self.objects)

    def _reach(self) -> None:
        if self.is_away:
            raise KubeError("no answer")
