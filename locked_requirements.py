"""Prints the lines of requirements.lock that some of Steppe's extras need, with their hashes, for pip --require-hashes.

    python3 locked_requirements.py build > build.txt            the packages that install and build Steppe
    python3 locked_requirements.py cluster,onnx > wanted.txt    the packages that Steppe needs with these extras
    python3 locked_requirements.py --versions > versions.txt    all versions without hashes, as constraints for pip
    python3 locked_requirements.py --make                       writes the lock anew, with uv; keeps versions if possible

Printing needs no installed package. The lock notes below each package which extras need it; `base` is Steppe without
extras, `build` is the packages that install and build it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent
LOCK, GPU_LOCK = FOLDER / "requirements.lock", "requirements-gpu.lock"
BUILD_FILE, GPU_FILE = "requirements-build.in", "requirements-gpu.in"
BASE, BUILD = "base", "build"
NOTE = "    # for "
UV = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--no-header", "--no-annotate"]
Blocks = dict[str, str]
"""Package -> its lines in the lock."""


def wanted(extras: list[str]) -> str:
    """The lines of all packages that Steppe needs with these extras, or that build it if `extras` is ["build"]."""
    blocks = _blocks(LOCK.read_text(encoding="utf-8"))
    needs = {name: set(re.findall(rf"^{NOTE}(.*)$", block, re.M)[0].split(", ")) for name, block in blocks.items()}
    known = set().union(*needs.values())
    for extra in extras:
        if extra not in known:
            sys.exit(f'error: requirements.lock knows no extra "{extra}"; it has {", ".join(sorted(known))}')
    parts = {BUILD} if extras == [BUILD] else {BASE, *extras}
    return "".join(block for name, block in blocks.items() if needs[name] & parts)


def versions() -> str:
    """Every package with its version and without hashes."""
    lines = LOCK.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line.rstrip(" \\\n") + "\n" for line in lines if line[0].isalnum())


def make() -> None:
    """Writes both locks; a version changes only if pyproject.toml asks for another."""
    extras = list(tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    everything = [word for extra in extras for word in ("--extra", extra)]
    # uv keeps the versions that it finds in its output file.
    _compile("--generate-hashes", *everything, "pyproject.toml", BUILD_FILE, "-o", LOCK.name)
    blocks = _blocks(LOCK.read_text(encoding="utf-8"))
    parts = {BASE: ["pyproject.toml"], BUILD: [BUILD_FILE]}
    parts |= {extra: ["pyproject.toml", "--extra", extra] for extra in extras}
    same_versions = ["--constraint", LOCK.name]
    needs: dict[str, list[str]] = {name: [] for name in blocks}
    for part, arguments in parts.items():
        for name in _blocks(_compile(*same_versions, *arguments)):
            needs[name].append(part)
    LOCK.write_text("".join(f"{block}{NOTE}{', '.join(needs[name])}\n" for name, block in blocks.items()))
    _compile("--generate-hashes", *same_versions, GPU_FILE, "-o", GPU_LOCK)


def _compile(*arguments: str) -> str:
    return subprocess.run([*UV, *arguments], cwd=FOLDER, check=True, stdout=subprocess.PIPE, text=True).stdout


def _blocks(text: str) -> Blocks:
    """Each package's lines; a package with several versions, for several systems, is one block."""
    blocks: Blocks = {}
    name = ""
    for line in text.splitlines(keepends=True):
        if line[0].isalnum():
            name = line.partition("==")[0]
        blocks[name] = blocks.get(name, "") + line
    return blocks


def main(arguments: list[str]) -> None:
    """Does what the command line asks for, or exits with the usage."""
    match arguments:
        case ["--make"]:
            make()
        case ["--versions"]:
            sys.stdout.write(versions())
        case [names] if not names.startswith("-"):
            sys.stdout.write(wanted([name for name in names.split(",") if name]))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
