"""Disks that fail."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small disk with the given options, or again with others; skips where that is not allowed."""
    point = tmp_path / "disk"
    point.mkdir()
    mounted = False

    def mount_with(options: str) -> Path:
        nonlocal mounted
        if os.geteuid() != 0:
            pytest.skip("only root may mount a disk")
        command = ["mount", "-o", f"remount,{options}" if mounted else options, "-t", "tmpfs", "tmpfs", str(point)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting is not allowed here")
        mounted = True
        return point

    yield mount_with
    if mounted:
        subprocess.run(["umount", str(point)], capture_output=True, check=True)
