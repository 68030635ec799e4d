"""The progress that a learner in a program of its own prints: a line on the standard error every ten seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from steppe.net.local_tokens import token_sentence
from steppe.runners._base import Progress, RunOutcome

LINE_SECONDS = 10.0


class ProgressLines:
    """Prints progress, for programs without an `on_progress` of their own."""

    def __init__(self, timesteps: int | None) -> None:
        """`timesteps` is the limit of the run, if it has one."""
        self._of = "" if timesteps is None else f" of {timesteps:,}"
        self._next = 0.0
        self._told = 0

    def listens(self, host: str, port: int, token_file: Path | None) -> None:
        """Prints the address for workers, and the file of the token that the learner made, if any."""
        _say(f"listening for workers at {host}:{port}")
        if token_file is not None:
            _say(f"note: {token_sentence(token_file)}; workers of yours on this machine find it by themselves")

    def __call__(self, progress: Progress) -> None:
        """Prints a line if one is due, and new notices at once."""
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
        """Prints how the run ended."""
        _say(f"{outcome.state} after {outcome.timestep:,} timesteps: {outcome.reason}")


def _say(line: str) -> None:
    # A closed standard error must not end the training.
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
