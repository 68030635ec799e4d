"""The place in the user's own code where an exception was raised: the useful part of a traceback."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

from steppe.specs.loading.files import shown_path

_STEPPE = str(Path(__file__).parents[1])
_STANDARD = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_BETWEEN = ("gymnasium", "numpy", "jax", "ray")
"""Packages that call the user's code or are called by it, and rarely contain the mistake."""
DEBUG = "--debug shows the whole traceback"
GYMNASIUM_EXTRA = r"\bgymnasium\[([\w-]+)\]"
STEPPE_EXTRAS = {
    "classic_control": "video",
    "toy_text": "video",
    "box2d": "box2d",
    "mujoco": "mujoco",
    "atari": "atari",
}
"""gymnasium's extra (with "_" for "-") -> the extra of Steppe that brings the same packages."""


def told(error: BaseException, when: str = "") -> str:
    """`ValueError: no such room (my_env.py, line 12, in step)`; `when` comes before the place."""
    where = place_of(error)
    text = " ".join(str(error).split())  # an error is one line
    said = f": {with_own_extras(text)}" if text else ""
    return f"{type(error).__name__}{said}{when}{f' ({where})' if where else ''}"


def without_debug(sentence: str) -> str:
    """The sentence without its hint about --debug, for callers in Python, which shows tracebacks itself."""
    return sentence.replace(f" ({DEBUG})", "")


def with_own_extras(text: str) -> str:
    """The text with `steppe[video]` for `gymnasium[classic-control]`, and so on."""

    def own(found: re.Match[str]) -> str:
        extra = STEPPE_EXTRAS.get(found[1].replace("-", "_"))
        return found[0] if extra is None else f"steppe[{extra}]"

    return re.sub(GYMNASIUM_EXTRA, own, text)


def place_of(error: BaseException) -> str:
    """`my_env.py, line 12, in step`: the last frame of the user's code; "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return ""  # its own text says the file and the line
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_STEPPE, "<frozen")) and not _is_standard(frame.filename)
    ]
    own = [frame for frame in frames if not any(word in Path(frame.filename).parts for word in _INSTALLED)]
    # An environment may come in an installed package.
    packaged = [frame for frame in frames if not any(word in Path(frame.filename).parts for word in _BETWEEN)]
    last = next(reversed(own or packaged), None)
    return "" if last is None else f"{shown_path(last.filename)}, line {last.lineno}, in {last.name}"


def traceback_of(error: BaseException) -> str:
    """The whole traceback, with those of the exceptions that caused it."""
    return "".join(traceback.format_exception(error)).rstrip()


def has_traceback(error: BaseException) -> bool:
    """Whether the user's code raised it, here or in a worker process, so that its traceback is worth showing."""
    return error.__cause__ is not None or bool(getattr(error, "__notes__", ()))


def _is_standard(file: str) -> bool:
    """Whether the file belongs to Python's standard library, whose folder may also contain installed packages."""
    return file.startswith(_STANDARD) and not any(word in Path(file).parts for word in _INSTALLED)
