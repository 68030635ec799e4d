"""The Python modules that a file or a message may name for import: only those that the caller allows.

Importing a module runs its code. A policy can name a module for a layer ("my_layers:MyLayer"), and a run folder one for
its environment ("my_env:make"), so the caller that reads one states which modules it may name. Specs that a user trains
need no such permission: training runs the user's own code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from steppe.errors import ModuleNotAllowed, UserError
from steppe.specs.environment import IN_PROCESS, EnvironmentSpec
from steppe.specs.learning.network import Custom, NetworkSpec

WRAPPERS = "gymnasium.wrappers"
"""Wrappers of this module belong to gymnasium and need no permission."""
OLD_GYM = "GymV"
"""The prefix of gymnasium's environments that wrap one of the old package gym, which may import a module too."""
LONGEST_SHOWN = 100


@dataclass(frozen=True)
class AllowedModules:
    """The modules that a file or a message may name; "my_layers" allows my_layers and all below it."""

    names: frozenset[str] = frozenset()
    all: bool = False
    """Whether every module is allowed: for descriptions that this process made or has checked before."""

    @classmethod
    def of(cls, given: str | Iterable[str]) -> AllowedModules:
        """Parses the modules that a caller allows: one name, several, or several with commas between them."""
        words = [given] if isinstance(given, str) else list(given)
        names = [name.strip() for word in words for name in word.split(",")]
        for name in names:
            if not _is_dotted(name):
                raise UserError(f'wrong module "{_shown(name)}" to allow; write its name, such as my_layers')
        return cls(frozenset(names))

    def __or__(self, other: AllowedModules) -> AllowedModules:
        return AllowedModules(self.names | other.names, self.all or other.all)

    def __contains__(self, module: str) -> bool:
        parts = module.split(".")
        return self.all or any(".".join(parts[:count]) in self.names for count in range(1, len(parts) + 1))

    def check_network(self, network: NetworkSpec | None, whose: str) -> None:
        """Refuses a network with a layer of a module that is not allowed; imports nothing."""
        for layer in () if network is None else network.root:
            if isinstance(layer, Custom):
                self._check(layer.module.partition(":")[0], f'{whose} has the layer "{_shown(layer.module)}"')

    def check_environment(self, environment: EnvironmentSpec, whose: str) -> None:
        """Refuses an environment of a module that is not allowed, and wrappers of one; imports nothing."""
        id, settings = environment.id, environment.settings
        # An object of this process was passed by its own code and needs no import.
        named = "" if id.startswith(IN_PROCESS) else id
        for each in (named, str(settings.get("env_id", "")) if id.startswith(OLD_GYM) else ""):
            for module in each.split(":")[:-1]:
                self._check(module, f'{whose} has the environment "{_shown(each)}"')
        for wrapper in environment.wrappers:
            path: str = wrapper["type"]
            if path.startswith(IN_PROCESS):
                continue
            module, colon, name = path.partition(":")
            if not colon:
                module, _, name = path.rpartition(".")
            # A dotted name could reach anything that the module has imported.
            if not (module == WRAPPERS and name.isidentifier()):
                self._check(module, f'{whose} has the wrapper "{_shown(path)}"')

    def _check(self, module: str, what: str) -> None:
        if module not in self:
            name = _shown(module)
            raise ModuleNotAllowed(
                f'{what}, which would run code of the module "{name}"; if you trust it, add --allow-modules {name} '
                f'(in Python allow_modules="{name}")'
            )


NO_MODULES = AllowedModules()
EVERY_MODULE = AllowedModules(all=True)


def named_by(spec: BaseModel) -> AllowedModules:
    """The modules named anywhere in a user's own spec; the trained policy may name them too."""
    modules = (text.partition(":")[0] for text in _texts(spec.model_dump()) if _names_module(text))
    return AllowedModules(frozenset(modules))


def named_in(text: str | None) -> AllowedModules:
    """The module of a "module:callable" that a user has typed."""
    if text is None or not _names_module(text):
        return NO_MODULES
    return AllowedModules(frozenset({text.partition(":")[0]}))


def _names_module(text: str) -> bool:
    """Whether the text has the form "module:callable" or gymnasium's "module:namespace/Name-v0"."""
    module, colon, name = text.rpartition(":")
    return bool(colon and name) and _is_dotted(module)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _shown(text: str) -> str:
    """Untrusted text, shortened and without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST_SHOWN])
