"""Runs unmodified clients of other projects with a Python that has them installed.

They need other versions of protobuf, so they may be in virtual environments of their own; STEPPE_CLIENT_VENVS names
these, separated by ":".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run(package: str, program: str, *words: Any) -> Any:
    """Runs a program and returns its last line, parsed as JSON; skips the test if no Python has the package."""
    python = _python_with(package)
    if python is None:
        pytest.skip(f"no Python here has {package}; pip install it into an environment named by STEPPE_CLIENT_VENVS")
    # With PYTHONPATH the program would import this environment's packages instead of its own.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    child = subprocess.run(
        [python, "-c", program, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


def _python_with(package: str) -> str | None:
    folders = [Path(each) for each in os.environ.get("STEPPE_CLIENT_VENVS", "").split(":") if each]
    for python in [sys.executable, *(str(folder / "bin" / "python") for folder in folders)]:
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        if Path(python).exists() and subprocess.run([python, "-c", probe], check=False).returncode == 0:
            return python
    return None
