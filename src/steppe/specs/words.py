"""The nearest valid word to one that is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like `word`, whatever its case and separators; None when nothing is close."""
    by_fold = {_fold(choice): choice for choice in choices}
    matches = difflib.get_close_matches(_fold(word), by_fold, n=1, cutoff=0.65)
    if not matches and len(word) > 2:
        matches = [fold for fold in by_fold if fold.startswith(_fold(word))]
    return by_fold[matches[0]] if matches else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The end of an error: `; did you mean "ppo"?`, or nothing when no choice is close."""
    choice = nearest(word, choices)
    return f'; did you mean "{choice}"?' if choice is not None else ""


def quoted(words: Iterable[str]) -> str:
    """The words as people list them: `"a", "b" or "c"`."""
    *others, last = [f'"{word}"' for word in words]
    return f"{', '.join(others)} or {last}" if others else last


def _fold(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_")
