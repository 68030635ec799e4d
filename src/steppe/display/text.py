"""Formats numbers and times for people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from steppe.experiments.run_folder.store import Status

WINDOW = 100
"""The number of episodes in a mean return, at most."""


def age(moment: float | None, now: float | None = None) -> str:
    """How long ago a moment (seconds since 1970) was: `3 min ago`; nothing for None."""
    if moment is None:
        return ""
    seconds = (time.time() if now is None else now) - moment
    if seconds < 5:
        return "just now"
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (14 * 86400, 86400, "days")):
        if seconds < limit:
            amount = int(seconds // unit)
            return f"{amount} {'day' if name == 'days' and amount == 1 else name} ago"
    return f"{int(seconds // (7 * 86400))} weeks ago"


def count(number: float | None) -> str:
    """A count in three digits or fewer: `950`, `12.3k`, `1.2M`; nothing for None."""
    if number is None:
        return ""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        # 999,950 would be rounded to 1000.0k.
        if abs(number) >= size * 0.99995:
            return f"{number / size:.1f}".removesuffix(".0") + letter
    return f"{number:.0f}"


def score(value: float | None) -> str:
    """A return with sensible digits; a dash if there is none yet."""
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def last_episodes(ended: int) -> str:
    """The episodes in a mean return after `ended` episodes: `the last 100 episodes`, or fewer."""
    counted = min(ended, WINDOW)
    return "the last episode" if counted == 1 else f"the last {counted} episodes"


def told_scores(status: Status) -> list[tuple[str, str]]:
    """(label, text) of the scores of a run: of its newest evaluation, if there is one, and while learning."""
    from steppe.records.evaluation_score import Score

    evaluation = Score.read(status.evaluation)
    told = []
    if evaluation is not None:
        many = f"{evaluation.episodes:,} episode{'' if evaluation.episodes == 1 else 's'}"
        if evaluation.policy is None:
            text = f"{score(evaluation.mean)} (evaluation of {many} at timestep {evaluation.timestep:,})"
        else:
            low, high = evaluation.interval or (None, None)
            within = "" if low is None else f", 95% interval {score(low)} to {score(high)}"
            text = f"{score(evaluation.mean)} (evaluation of {many}{within})"
        told.append(("score", text))
        if evaluation.best is not None:
            other = f"last {score(evaluation.last)}, best {score(evaluation.best)}"
            told.append(("policies", f"{other}; policy/ is the {evaluation.policy} one"))
    if status.mean_return is not None:
        text = f"{score(status.mean_return)} (mean return of {last_episodes(status.episode)})"
        told.append(("training" if told else "score", text))
    return told


def closing_line(name: str, folder: Path, status: Status) -> str:
    """One sentence, for callers from Python, on how a run ended and where its results are."""
    from steppe.experiments.run_folder.states import stands
    from steppe.records.evaluation_score import Score
    from steppe.specs.loading.files import shown_path

    why = f": {status.reason}" if status.reason else ""
    mean = ""
    if status.mean_return is not None:
        mean = f"; mean return of {last_episodes(status.episode)} {score(status.mean_return)}"
    if (evaluation := Score.read(status.evaluation)) is not None:
        mean += f"{',' if mean else '; mean return'} of {evaluation.episodes} in evaluation {score(evaluation.mean)}"
    ended = f'experiment "{name}" {stands(status.state)}{why}{mean}'
    return f"{ended}, in {duration(status.seconds)}; see {shown_path(folder)}"


def duration(seconds: float | None) -> str:
    """A length of time: `8 s`, `2:05`, `1:02:03`; a dash for None."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(amount: int) -> str:
    """A file's size: `12 kB`."""
    for limit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if amount >= limit:
            return f"{amount / limit:.1f}".removesuffix(".0") + f" {name}"
    return f"{amount} B"
