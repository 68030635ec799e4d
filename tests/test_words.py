"""A noun has one meaning: no class name and no module name of the package stands for two things."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "steppe"

SHARED_CLASS_NAMES: set[str] = set()
"""Class names that may be defined in several modules."""

SHARED_MODULE_NAMES = {
    "__init__",
    "_base",
    "engine",  # each run mode has one
    "cluster",  # a spec, a command and a thing in Python
    "experiment",  # the same
    "seldon",  # a dialect by HTTP, by gRPC and for clients
}
"""Module names that may occur in more than two packages."""


def test_no_class_name_is_defined_in_two_modules() -> None:
    modules = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(str(path.relative_to(SOURCE)))
    shared = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if name not in SHARED_CLASS_NAMES} == {}
    assert set(shared) >= SHARED_CLASS_NAMES, "an exception that is none any more"


def test_no_module_name_occurs_in_more_than_two_packages() -> None:
    packages = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        packages[path.stem].append(str(path.parent.relative_to(SOURCE)))
    shared = {name: sorted(paths) for name, paths in packages.items() if len(paths) > 2}
    assert {name: paths for name, paths in shared.items() if name not in SHARED_MODULE_NAMES} == {}
    assert set(shared) >= SHARED_MODULE_NAMES, "an exception that is none any more"
