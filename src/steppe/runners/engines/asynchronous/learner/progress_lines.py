"""What a learner in a program of its own tells by itself: a line on the standard error now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from steppe.net.local_tokens import token_sentence
from steppe.runners._base import Progress, RunOutcome

LINE_SECONDS = 10.0


class ProgressLines:
    """Shows progress where the program has nothing else in mind."""

    def __init__(self, timesteps: int | None) -> None:
        """`timesteps` are how many there are to be, where they are limited."""
        self._of = "" if timesteps is None else f" of {timesteps:,}"
        self._next = 0.0
        self._told = 0

    def listens(self, host: str, port: int, token_file: Path | None) -> None:
        """Where workers come to, and where the token is that the learner made for itself."""
        _say(f"listening for workers at {host}:{port}")
        if token_file is not None:
            _say(f"note: {token_sentence(token_file)}; workers of yours on this machine find it by themselves")

    def __call__(self, progress: Progress) -> None:
        """A line if it is time for one; what a user should know at once."""
        for notice in progress.notices[self._told :]:
            _say(f"note: {notice}")
        self._told = len(progress.notices)
        now = time.monotonic()
        if progress.phase != "training" or now < self._next:
            return
        self._next = now + LINE_SECONDS
        metrics = progress.metrics
        returned = "" if progress.mean_return is None else f", mean return {progress.mean_return:.4g}"
        _say(
            f"{progress.timestep:,}{self._of} timesteps{returned}, {progress.steps_per_second:,.0f} timesteps/s, "
            f"{metrics.get('updates_per_second', 0.0):,.0f} updates/s, {metrics.get('workers', 0):.0f} workers, "
            f"{metrics.get('dropped', 0):.0f} batches dropped, {metrics.get('lost', 0):.0f} lost"
        )

    def ended(self, outcome: RunOutcome) -> None:
        """How it came to its end."""
        _say(f"{outcome.state} after {outcome.timestep:,} timesteps: {outcome.reason}")


def _say(line: str) -> None:
    # Whoever reads it may be gone, which is no reason to learn no more.
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
