"""For every test: compiled programs are kept between runs, apart from the user's own."""

from __future__ import annotations

import os
from pathlib import Path

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("STEPPE_CACHE", str(_CACHE / "steppe-tests" / "compiled"))
