"""For every test: compiled programs are kept between runs, apart from the user's own, Ctrl-C is heard, and no example
of a property fails by the time it takes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hypothesis import settings

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("STEPPE_CACHE", str(_CACHE / "steppe-tests" / "compiled"))

# The usual 200 ms for each are too few where other programs may have all cores for as long.
settings.register_profile("steppe", deadline=None)
settings.load_profile("steppe")

# In the background of a shell, and under nohup, these are ignored, which whatever tests start would inherit.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)
