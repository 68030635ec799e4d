"""Builds and pushes container images of Steppe with docker, podman or buildah."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from steppe.errors import SteppeError, UserError

PROGRAMS = ("docker", "podman", "buildah")
"""In the order in which they are tried; all take the same arguments."""
LOCKS = ("requirements.lock", "requirements-gpu.lock", "locked_requirements.py")
FILES = ("Dockerfile", ".dockerignore", "pyproject.toml", *LOCKS, "README.md", "LICENSE")
"""Files that the build needs beside the package; a wheel has them in share/steppe."""
EXTRAS = ("cluster", "onnx")
"""Extras in every image: Ray and messages for the run modes, and the export of policies."""
PATIENCE = 30.0
"""Seconds within which a program must show that it works."""


@dataclass(frozen=True)
class Recipe:
    """The contents of an image."""

    name: str
    gpu: bool = False
    extras: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    base: str | None = None


def standard_name(gpu: bool = False) -> str:
    """The default name of an image of this version."""
    from importlib.metadata import version

    return f"steppe:{version('steppe')}{'-gpu' if gpu else ''}"


def usable_program(asked: str | None = None) -> str:
    """The program to build and push with: `asked`, or the first that works."""
    if asked is not None and asked not in PROGRAMS:
        raise UserError(f'unknown program "{asked}"; images are built with {_alternatives(PROGRAMS)}')
    candidates = PROGRAMS if asked is None else (asked,)
    found = [program for program in candidates if shutil.which(program)]
    if not found:
        raise UserError(f"images are built with {_alternatives(candidates)}, and there is none here; install one first")
    complaints = []
    for program in found:
        if (complaint := _complaint(program)) is None:
            return program
        complaints.append(f"{program} is there but does not work ({complaint})")
    others = [program for program in PROGRAMS if program not in found]
    way_out = f"start it, or install {_alternatives(others)}" if others else "start one of them"
    raise SteppeError(f"{'; '.join(complaints)}; {way_out}")


def program_for(asked: str | None, dry_run: bool) -> str:
    """As `usable_program`; for a dry run it need not work or be installed."""
    if not dry_run or (asked is not None and asked not in PROGRAMS):
        return usable_program(asked)
    try:
        return usable_program(asked)
    except SteppeError:
        return asked or next((program for program in PROGRAMS if shutil.which(program)), PROGRAMS[0])


def build(recipe: Recipe, program: str, dry_run: bool = False) -> str:
    """Builds an image of the running Steppe, and returns the command."""
    _check_name(recipe.name)
    for package in recipe.packages:
        if package.startswith("-") or not package.strip():
            raise UserError(f'"{package}" is no package; write it as for pip: "highway-env==1.10.1"')
    with _context() as folder:
        _check_extras(recipe.extras, folder)
        command = _build_command(recipe, program, folder)
        if not dry_run:
            _run(command, f"{program} could not build {recipe.name}", "nothing was built")
    return shlex.join(command)


def push(name: str, program: str, dry_run: bool = False) -> str:
    """Pushes an image to the registry in its name, and returns the command."""
    _check_name(name)
    if "/" not in name:
        raise UserError(
            f"{name} names no registry to push to; build it under a name that does: "
            f"steppe image build -t registry.example.com/team/{name}"
        )
    command = [program, "push", name]
    if not dry_run:
        way_out = f"is it built under this name, and are you logged in ({program} login {name.split('/')[0]})?"
        _run(command, f"{program} could not push {name}", "nothing may have arrived", way_out)
    return shlex.join(command)


def _complaint(program: str) -> str | None:
    """Why a program cannot be used, such as Docker without its daemon."""
    try:
        done = subprocess.run([program, "info"], capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return f"no answer in {PATIENCE:g} s"
    except OSError as error:
        return str(error.strerror or error)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[0].removeprefix("ERROR: ").rstrip(".") if lines else f"exit code {done.returncode}"


@contextlib.contextmanager
def _context() -> Iterator[Path]:
    """The build context: the checkout, or a copy of the installed package with the same layout."""
    package = Path(__file__).parent
    if (package.parents[1] / "Dockerfile").is_file():
        yield package.parents[1]
        return
    shared = _shared_files()
    with tempfile.TemporaryDirectory(prefix="steppe-image-") as name:
        for file in FILES:
            shutil.copy(shared / file, name)
        shutil.copytree(package, Path(name, "src", "steppe"), ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(name)


def _shared_files() -> Path:
    from importlib.metadata import PackageNotFoundError, files

    with contextlib.suppress(PackageNotFoundError):
        for file in files("steppe") or ():
            if file.parts[-3:] == ("share", "steppe", "Dockerfile") and Path(str(file.locate())).is_file():
                return Path(str(file.locate())).parent
    raise SteppeError("this installation of Steppe has no Dockerfile; build from a checkout of its source instead")


def _check_name(name: str) -> None:
    repository = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
    host = r"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?"
    if not re.fullmatch(rf"{host}{repository}(?:/{repository})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?", name):
        raise UserError(
            f'"{name}" cannot be an image\'s name; write it in small letters as [registry/]name[:tag], such as '
            f"registry.example.com/team/{standard_name()}"
        )


def _check_extras(extras: Sequence[str], folder: Path) -> None:
    from steppe.specs.loading.suggestions import did_you_mean

    known = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in extras:
        if extra not in known:
            raise UserError(
                f'unknown extra "{extra}"{did_you_mean(extra, known)} (there are {", ".join(sorted(known))})'
            )


def _build_command(recipe: Recipe, program: str, folder: Path) -> list[str]:
    arguments = {"EXTRAS": ",".join(dict.fromkeys([*EXTRAS, *recipe.extras]))}
    if recipe.packages:
        arguments["PACKAGES"] = " ".join(recipe.packages)
    if recipe.base is not None:
        arguments["BASE"] = recipe.base
    given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    # Every version of buildah has "bud".
    verb = "bud" if program == "buildah" else "build"
    target = "gpu" if recipe.gpu else "cpu"
    file = str(folder / "Dockerfile")
    return [program, verb, "--tag", recipe.name, "--target", target, *given, "--file", file, str(folder)]


def _run(command: list[str], failure: str, interrupted: str, way_out: str = "") -> None:
    """Runs a program whose output appears in this terminal."""
    try:
        code = subprocess.run(command).returncode
    except KeyboardInterrupt:
        raise SteppeError(f"interrupted: {interrupted}") from None
    except OSError as error:
        raise SteppeError(f"{failure} ({error.strerror or error})") from error
    if code:
        reason = f"{failure} (exit code {code}; its own words are above)"
        raise SteppeError(f"{reason}; {way_out}" if way_out else reason)


def _alternatives(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
