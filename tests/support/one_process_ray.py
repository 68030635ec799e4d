"""A fake of the part of Ray that parameter servers and workers use, with actors that live in this process.

A method's result is computed when it is called, and copied as it would be between processes. So a test of the messages
between actors needs neither Ray nor other processes, and always runs in the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from steppe.runners.ray.ray_session import RaySession


class RayError(Exception):
    """The actor is gone."""


class GetTimeoutError(RayError):
    """The actor has not answered yet."""


class RayTaskError(RayError):
    """The method has raised."""


class Reference:
    """The result or the exception of a method."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self.value, self.error = value, error


class Handle:
    """The handle of an actor."""

    def __init__(self, kind: type, arguments: tuple[Any, ...]) -> None:
        self.actor = kind(*deepcopy(arguments))
        self.is_lost = False

    def __deepcopy__(self, _: Any) -> Handle:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Reference:
        if self.is_lost:
            return Reference(error=RayError("the actor is gone"))
        return Reference(deepcopy(getattr(self.actor, name)(*deepcopy(arguments))))


class Waiting:
    """The handle of an actor that waits for a machine and answers nothing."""

    is_lost = False
    actor = None

    def __deepcopy__(self, _: Any) -> Waiting:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda *_: Reference(error=GetTimeoutError("it has not started")))


class OneProcessRay(ModuleType):
    """Replaces the module `ray`."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, GetTimeoutError=GetTimeoutError)

    def __init__(self) -> None:
        super().__init__("ray")
        self.handles: list[Any] = []
        self.cpus: list[float] = []
        """The CPUs that each actor has asked for."""
        self.has_machines = True

    def remote(self, kind: type) -> SimpleNamespace:
        def options(num_cpus: float, **_: Any) -> SimpleNamespace:
            return SimpleNamespace(remote=lambda *arguments: self._started(kind, num_cpus, arguments))

        return SimpleNamespace(options=options)

    def _started(self, kind: type, cpus: float, arguments: tuple[Any, ...]) -> Any:
        self.handles.append(Handle(kind, arguments) if self.has_machines else Waiting())
        self.cpus.append(cpus)
        return self.handles[-1]

    def living(self, kind: str) -> list[Handle]:
        """The living actors whose class has this name."""
        return [each for each in self.handles if not each.is_lost and type(each.actor).__name__ == kind]

    def get(self, references: Any, timeout: float | None = None) -> Any:
        if isinstance(references, list):
            return [self.get(each) for each in references]
        if references.error is not None:
            raise references.error
        return references.value

    def wait(self, references: list[Reference], **_: Any) -> tuple[list[Reference], list[Reference]]:
        waiting = [each for each in references if isinstance(each.error, GetTimeoutError)]
        return [each for each in references if each not in waiting], waiting

    def kill(self, handle: Any) -> None:
        handle.is_lost = True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 100.0}}]

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(get_assigned_resources=dict)


@contextmanager
def one_process_ray() -> Iterator[OneProcessRay]:
    """Inside the block, run mode distributed starts its actors in this process."""
    ray = OneProcessRay()

    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[RaySession]:
        yield RaySession("this process", is_own=True)

    place = "steppe.runners.engines.distributed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", ray)
        patch.setattr(f"{place}.engine.ray_session", session)
        # This process goes on.
        patch.setattr(f"{place}.gradient_worker.die_with_parent", lambda: None)
        patch.setattr(f"{place}.server_pool.die_with_parent", lambda: None)
        yield ray
