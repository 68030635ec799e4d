"""The status server of a reader of object storage: each file is fetched when it is requested."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from steppe.errors import SteppeError, StorageError
from steppe.platforms.kubernetes.pod.status_server import REQUEST_FILE, STATUS_FILE, StatusServer, is_shown
from steppe.platforms.kubernetes.storage.object_store import Index, ObjectStore, StoredObject
from steppe.platforms.kubernetes.storage.result_sync import damage_of, fetch_checked

Json = dict[str, Any]


class StoredStatusServer(StatusServer):
    """Shows the files in object storage, each checked by its checksum."""

    def __init__(self, url: str, folder: Path, token: str, facts: Json) -> None:
        """`folder` receives the fetched files."""
        super().__init__(folder, token, lambda: facts, takes_requests=False)
        self._url = url
        self._fetched_as: dict[str, StoredObject] = {}
        self._lock_fetch = threading.RLock()
        self._store: ObjectStore | None = None

    def status(self) -> Json:
        """The run's last status, or None if it cannot be read: a reader answers even if the store is away."""
        try:
            path = self.file(STATUS_FILE)
            status = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
        except (SteppeError, OSError, ValueError):
            status = None
        return {"status": status, **self.facts()}

    def listed(self, only: str | None = None) -> list[Json]:
        """The files of the index, or only the one of that name; fetches files that a killed writer was changing."""
        index = self._index()
        found = []
        for name in sorted({*index.files, *index.coming}):
            if only not in (None, name) or not is_shown(name) or Path(name).name == REQUEST_FILE:
                continue
            entry = index.files.get(name)
            if name in index.coming:
                entry = self._fetch(name, index)
            if entry is not None:
                found.append({"path": name, "size": entry.size, "sha256": entry.sha256})
        return found

    def file(self, name: str) -> Path | None:
        """A checked copy of the object of that name; None if there is none."""
        if not is_shown(name):
            return None
        index = self._index()
        return self.folder / name if self._fetch(name, index) is not None else None

    def _fetch(self, name: str, index: Index) -> StoredObject | None:
        """Fetches an object unless there is a current copy; None if there is no such object."""
        wanted = index.versions(name)
        if not wanted:
            return None
        with self._lock_fetch:
            known = self._fetched_as.get(name)
            if known is not None and wanted == [known]:
                return known
            found = fetch_checked(self._opened_store(), name, self.folder / name, wanted)
            if found is None and name not in index.files:
                return None
            if found is None or found not in wanted:
                raise StorageError(damage_of(self._opened_store(), name))
            self._fetched_as[name] = found
            return found

    def _index(self) -> Index:
        return self._opened_store().read_index() or Index()

    def _opened_store(self) -> ObjectStore:
        """The store, opened at the first request, which then reports a store that cannot be opened."""
        with self._lock_fetch:
            if self._store is None:
                self._store = ObjectStore(self._url)
            return self._store
