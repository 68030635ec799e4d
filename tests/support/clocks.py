"""A fake clock for the test's own thread; all other threads keep the real one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest


def set_clock(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """Replaces functions of `time` by name, such as monotonic and sleep."""
    for name, function in functions.items():
        monkeypatch.setattr(time, name, _in_this_thread(function, getattr(time, name)))


def _in_this_thread(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    thread = threading.get_ident()
    return lambda *arguments: (function if threading.get_ident() == thread else original)(*arguments)
