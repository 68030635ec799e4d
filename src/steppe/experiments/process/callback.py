"""The caller's `on_progress`: it may stop a run, and its errors never lose the run's work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from steppe.errors import CallbackFault, StopTraining

if TYPE_CHECKING:
    from steppe.runners import Progress

OnProgress = Callable[["Progress"], object]
"""Called after each chunk of training; returning False, or raising StopTraining, stops the run."""


def says_stop(answer: object) -> bool:
    """Whether an answer of `on_progress` is False, Python's or NumPy's; any other answer trains on."""
    return answer is False or (type(answer).__module__ == "numpy" and str(answer) == "False")


class Callback:
    """Calls `on_progress` and remembers whether it wants the run to stop, or has raised."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self.error: Exception | None = None
        """The error that it raised; it is not called again."""
        self.reason: str | None = None
        """Why the run is to stop."""

    def __call__(self, progress: Progress) -> None:
        """Calls it, unless it has raised before."""
        if self._on_progress is None or self.error is not None:
            return
        try:
            if says_stop(self._on_progress(progress)):
                self.reason = self.reason or "stopped by on_progress"
        except StopTraining as stop:
            self.reason = self.reason or (f"stopped by on_progress: {stop}" if str(stop) else "stopped by on_progress")
        except Exception as error:
            self.error = error

    @property
    def wants_end(self) -> bool:
        """Whether the run must end."""
        return self.error is not None or self.reason is not None

    def check(self) -> None:
        """Raises its error as a CallbackFault; called after the run has saved its work."""
        if self.error is not None:
            from steppe.specs.user_code import told

            raise CallbackFault(
                f"on_progress raised {told(self.error)}; the run has been saved, so correct on_progress and resume it"
            ) from self.error
