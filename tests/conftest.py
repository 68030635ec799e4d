"""For every test: compiled programs are kept between runs, apart from the user's own, and Ctrl-C is heard."""

from __future__ import annotations

import os
import signal
from pathlib import Path

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("STEPPE_CACHE", str(_CACHE / "steppe-tests" / "compiled"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in the background of a shell, and what tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
