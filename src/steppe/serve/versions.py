"""The versions of one policy: the one in service, the ones kept, and the look for newer ones."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steppe.errors import SteppeError, UserError
from steppe.files.durable import storing, write_atomically
from steppe.files.tensors import checksum
from steppe.policies.policy import Policy, load_policy
from steppe.policies.policy_folder import TENSORS_FILE
from steppe.serve.messages.exchange import NotFound
from steppe.serve.routing.compatibility import difference
from steppe.specs.allowed_modules import NO_MODULES, AllowedModules
from steppe.specs.loading.files import shown_path
from steppe.specs.loading.suggestions import did_you_mean

KEPT = 5
"""How many versions of a policy are kept, to be asked for or pinned."""
PIN_FILE = "pinned"


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """One policy as it was saved at one time."""

    name: str
    """Its timestep and the start of its checksum, such as 50000-9f31c0aa."""
    policy: Policy
    is_recurrent: bool


class Versions:
    """The policy in one folder and its earlier versions; `current` may be read from any thread."""

    def __init__(
        self,
        name: str,
        folder: Path,
        archive: Path | None = None,
        pinned: str | None = None,
        allowed: AllowedModules = NO_MODULES,
    ) -> None:
        """Loads the newest version and those in `archive`; UserError if there is nothing to serve.

        `pinned` puts one version into service, whatever was pinned before. Policies may import the Python modules in
        `allowed` for their layers.
        """
        self.name = name
        self.problem: str | None = None
        """Why the newest file is not in service."""
        self._folder = folder
        self._archive = archive
        self._allowed = allowed
        self._lock = threading.Lock()
        self._versions: dict[str, Version] = {}
        self._last_signature: tuple[int, ...] | None = None
        for version in self._archived():
            self._versions[version.name] = version
        try:
            newest = self._take_newest()
        except (SteppeError, OSError) as error:
            if not self._versions:
                raise
            newest = list(self._versions)[-1]
            self.problem = f"{_reason(error)}; version {newest} is served instead"
        self._newest = newest
        self.pinned = pinned if pinned is not None else self._read_pin()
        self.current = self.get(self.pinned or newest)

    @property
    def names(self) -> tuple[str, ...]:
        """The versions that can be asked for or pinned, newest last."""
        return tuple(self._versions)

    def get(self, name: str) -> Version:
        """The version of that name; NotFound if there is none."""
        version = self._versions.get(name)
        if version is None:
            way_out = did_you_mean(name, self._versions) or f"; there are {', '.join(self._versions)}"
            raise NotFound(f'policy "{self.name}" has no version "{name}"{way_out}')
        return version

    def refresh(self) -> str | None:
        """Puts a newer policy into service if there is one; returns a sentence on what is new or wrong."""
        with self._lock:
            try:
                if self._file_signature() == self._last_signature:
                    return None
                newest = self._take_newest()
            except BaseException as error:
                # A layer of an allowed module may raise anything, even SystemExit, and must not end the endpoint. The
                # user's own Ctrl-C comes to the main thread only.
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise
                if isinstance(error, OSError):
                    self._last_signature = None
                problem = f'policy "{self.name}" stays at version {self.current.name}: {_reason(error)}'
                is_known, self.problem = problem == self.problem, problem
                return None if is_known else problem
            self.problem = None
            if newest == self._newest:
                return None
            self._newest = newest
            if self.pinned is not None:
                return f'policy "{self.name}" has a new version {newest}, but version {self.pinned} is pinned'
            self.current = self._versions[newest]
            self._forget_old()
            return f'policy "{self.name}" is now served at version {newest}'

    def pin(self, name: str | None) -> None:
        """Puts one version into service until further notice, also after a restart; None returns to the newest."""
        with self._lock:
            version = self.get(name or self._newest)
            if self._archive is not None:
                with storing(self._archive):
                    self._archive.mkdir(parents=True, exist_ok=True)
                write_atomically(self._archive / PIN_FILE, name or "")
            self.pinned, self.current = name, version

    def _take_newest(self) -> str:
        """Loads and checks the policy in the folder; returns its version's name."""
        signature = self._file_signature()
        # Remembered even if the file is unusable, so that a problem is reported once.
        self._last_signature = signature
        version = _checked(load_policy(self._folder, allow_modules=self._allowed))
        self._check_fit(version)
        known = self._versions.get(version.name)
        # A new dict, since other threads may read the old one; a version that comes back becomes the newest again.
        others = {name: each for name, each in self._versions.items() if name != version.name}
        self._versions = others | {version.name: known or version}
        if known is None and self._archive is not None:
            version.policy.save(self._archive / version.name)
        return version.name

    def _check_fit(self, version: Version) -> None:
        """Refuses a version with other observations or actions: clients have been told what to send."""
        if not self._versions:
            return
        before = next(reversed(self._versions.values())).policy.description
        if version.policy.description.timestep == 0 < before.timestep:
            # A run that starts anew saves its policy before it has learned anything.
            raise UserError(f"version {version.name} has not been trained yet")
        if (what := difference(before, version.policy.description)) is not None:
            raise UserError(
                f"version {version.name} has other {what} than the versions before it; serve it as another policy"
            )

    def _forget_old(self) -> None:
        kept = {self._newest, self.current.name, self.pinned}
        spare = [name for name in self._versions if name not in kept]
        for name in spare[: max(0, len(self._versions) - KEPT)]:
            self._versions = {other: each for other, each in self._versions.items() if other != name}
            if self._archive is not None:
                shutil.rmtree(self._archive / name, ignore_errors=True)

    def _archived(self) -> list[Version]:
        """The versions in the archive, oldest first; damaged copies are skipped."""
        if self._archive is None or not self._archive.is_dir():
            return []
        files = [folder / TENSORS_FILE for folder in self._archive.iterdir() if (folder / TENSORS_FILE).is_file()]
        versions = []
        for file in sorted(files, key=lambda file: file.stat().st_mtime_ns):
            with contextlib.suppress(SteppeError, OSError):
                versions.append(_checked(load_policy(file.parent, allow_modules=self._allowed)))
        return versions

    def _read_pin(self) -> str | None:
        with contextlib.suppress(OSError):
            if self._archive is not None:
                pinned = (self._archive / PIN_FILE).read_text().strip()
                return pinned if pinned in self._versions else None
        return None

    def _file_signature(self) -> tuple[int, ...]:
        """Changes whenever the file does."""
        found = (self._folder / TENSORS_FILE).stat()
        return found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: BaseException) -> str:
    """Why a policy cannot be read, without the whole path that the system's message repeats."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot read {shown_path(Path(error.filename))}: {(error.strerror or str(error)).lower()}"
    return str(error) if isinstance(error, SteppeError | OSError) else f"{type(error).__name__}: {error}"


def _checked(policy: Policy) -> Version:
    """The version of a policy, after a first forward pass."""
    description = policy.description
    text = json.dumps(description.to_json(), sort_keys=True)
    name = f"{description.timestep}-{checksum(text, policy.tensors)[:8]}"
    for tensor, values in policy.tensors.items():
        if not np.all(np.isfinite(values)):
            raise UserError(f'the tensor "{tensor}" of version {name} has numbers that are not finite; train it again')
    shown = description.shown
    first = getattr(shown, "start", 0)
    observations = np.full((1, *shown.shape), first, "float32" if shown.dtype == "float64" else shown.dtype)
    policy.advance(observations, policy.initial_state((1,)))
    return Version(name, policy, policy.is_recurrent)
