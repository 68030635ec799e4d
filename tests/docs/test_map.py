"""The maps of the source in the docs name every package that there is, and no other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "steppe"


MODULES = {"errors", "signals", "spec_files"}
"""The modules beside the packages that are layers of their own; the others are what `import steppe` offers."""


def packages() -> set[str]:
    """Such as "envs.remote"."""
    folders = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py")} - {Path()}
    return {".".join(folder.parts) for folder in folders}


def mapped(page: Path, heading: str) -> set[str]:
    """The packages in the first code block below a heading: indented by two spaces for each folder they lie in."""
    block = page.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("```")[1]
    names: set[str] = set()
    parents: list[str] = []
    for line in block.strip("\n").splitlines():
        match = re.fullmatch(r"( *)((?:\w+, )*\w+) {2,}\S.*", line)
        assert match, f"not a line of a map: {line!r}"
        depth = len(match[1]) // 2
        here = match[2].split(", ")
        parents = [*parents[:depth], here[-1]]
        names |= {".".join([*parents[:depth], name]) for name in here}
    return names


def test_how_it_works_names_every_package() -> None:
    assert mapped(ROOT / "docs" / "how-it-works.md", "Rooms") == packages() | MODULES


def test_contributing_names_every_layer() -> None:
    top = {name for name in packages() if "." not in name}
    assert mapped(ROOT / "CONTRIBUTING.md", "Layers") == top | MODULES


def test_the_contract_of_the_layers_knows_every_package() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ][0]
    layers = {name.strip() for line in contract["layers"] for name in re.split(r"[|:]", line)}
    assert layers == {f"steppe.{name}" for name in packages() if "." not in name} | {
        f"steppe.{name}" for name in MODULES
    }
