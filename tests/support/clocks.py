"""A clock that a test sets for itself: threads that others have left behind go by the usual one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest


def set_clock(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """Puts functions in the place of those of `time` that are called so, such as monotonic and sleep."""
    for name, function in functions.items():
        monkeypatch.setattr(time, name, _only_here(function, getattr(time, name)))


def _only_here(function: Callable[..., Any], usual: Callable[..., Any]) -> Callable[..., Any]:
    here = threading.get_ident()
    return lambda *arguments: (function if threading.get_ident() == here else usual)(*arguments)
