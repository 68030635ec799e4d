"""The lock files: every package has its version and its hashes, and everything is installed from them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-gpu.lock", "requirements-torch-cpu.lock")


def packages(text):
    """(name, version, hashes) of each package."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.M))
    for line in joined.splitlines():
        requirement, *hashes = line.split(" --hash=")
        found = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;]+)(?:\s*;.*)?", requirement.strip())
        assert found, line
        yield found[1], found[2], [each.strip() for each in hashes]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_has_a_version_and_hashes_and_no_address(lock):
    text = (ROOT / lock).read_text()
    assert "://" not in text
    found = list(packages(text))
    assert found
    for name, _, hashes in found:
        assert hashes, name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), name


def test_the_lock_has_the_direct_requirements_of_each_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, requirements in project["optional-dependencies"].items():
        done = subprocess.run(
            [sys.executable, "locked_requirements.py", extra], cwd=ROOT, capture_output=True, text=True, check=True
        )
        locked = {name for name, _, _ in packages(done.stdout)}
        for requirement in [*project["dependencies"], *requirements]:
            name = re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower().replace("_", "-")
            assert name == "steppe" or name in locked, (extra, name)


def test_an_unknown_extra_is_refused():
    done = subprocess.run(
        [sys.executable, "locked_requirements.py", "nonsense"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert 'knows no extra "nonsense"' in done.stderr


def test_the_image_and_the_makefile_install_with_hashes_only():
    dockerfile = (ROOT / "Dockerfile").read_text()
    for line in dockerfile.splitlines():
        if "pip install" in line and not line.startswith("#"):
            assert "--require-hashes" in line or "--no-deps" in line or "${PACKAGES}" in line, line
    steppe = (ROOT / "Makefile").read_text().partition(".venv-%-client")[0]
    for line in steppe.splitlines():
        if "pip install" in line:
            assert "--require-hashes" in line or "--no-deps" in line, line
