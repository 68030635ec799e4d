"""The reader's door where results are in object storage: each file is fetched when it is asked for."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from steppe.errors import SteppeError, StorageError
from steppe.platforms.kubernetes.pod.status_server import REQUEST_FILE, STATUS_FILE, Door, is_shown
from steppe.platforms.kubernetes.storage.object_store import Entry, Index, ObjectStore
from steppe.platforms.kubernetes.storage.result_sync import damage, fetch_checked

Json = dict[str, Any]


class StoredDoor(Door):
    """Shows what the store holds, each file checked."""

    def __init__(self, url: str, folder: Path, token: str, facts: Json) -> None:
        """`folder` takes what has been fetched."""
        super().__init__(folder, token, lambda: facts, takes_requests=False)
        self._url = url
        self._held: dict[str, Entry] = {}
        self._fetching = threading.RLock()
        self._store: ObjectStore | None = None

    def status(self) -> Json:
        """The run's last status, if it can be had: a reader answers in any case, and tells later what is wrong."""
        try:
            path = self.file(STATUS_FILE)
            status = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
        except (SteppeError, OSError, ValueError):
            status = None
        return {"status": status, **self.facts()}

    def listed(self, only: str | None = None) -> list[Json]:
        """What the index says, without fetching anything whose content it is sure of; or of one name only."""
        index = self._index()
        found = []
        for name in sorted({*index.files, *index.coming}):
            if only not in (None, name) or not is_shown(name) or Path(name).name == REQUEST_FILE:
                continue
            entry = index.files.get(name)
            if name in index.coming:
                entry = self._fetched(name, index)
            if entry is not None:
                found.append({"path": name, "size": entry.size, "sha256": entry.sha256})
        return found

    def file(self, name: str) -> Path | None:
        """A copy of the object."""
        if not is_shown(name):
            return None
        index = self._index()
        return self.folder / name if self._fetched(name, index) is not None else None

    def _fetched(self, name: str, index: Index) -> Entry | None:
        """What the object is, now that there is a copy of it here; None where there is no object."""
        wanted = [*index.coming.get(name, ()), *([index.files[name]] if name in index.files else ())]
        if not wanted:
            return None
        with self._fetching:
            held = self._held.get(name)
            if held is not None and wanted == [held]:
                return held
            found = fetch_checked(self._opened(), name, self.folder / name, wanted)
            if found is None and name not in index.files:
                return None
            if found is None or found not in wanted:
                raise StorageError(damage(self._opened(), name))
            self._held[name] = found
            return found

    def _index(self) -> Index:
        return self._opened().read_index() or Index()

    def _opened(self) -> ObjectStore:
        """Opened late: a store that cannot be is told to whoever asks."""
        with self._fetching:
            if self._store is None:
                self._store = ObjectStore(self._url)
            return self._store
