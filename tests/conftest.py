"""For every test: compiled programs are kept between runs, apart from the user's own, and Ctrl-C is heard.

No example of a property has a deadline: how long one takes says more of what else the machine does than of itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("STEPPE_CACHE", str(_CACHE / "steppe-tests" / "compiled"))

settings.register_profile("steppe", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steppe")

# In the background of a shell, and under nohup, these are ignored, which whatever tests start would inherit.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# On a machine with other users servers on loopback would ask for a token; tests of that turn it on.
os.environ["STEPPE_LOOPBACK_TOKEN"] = "never"


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
