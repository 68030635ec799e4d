"""Unix signals: the only place that installs handlers, and the signals that ask a training to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Literal, Self

Handler = Callable[[int, FrameType | None], Any]
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handling(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Calls `handler` for these signals while the block lasts, and then restores the previous handlers.

    Only the main thread can handle signals; in another one none is installed. An ignored signal stays ignored, as
    SIGHUP after nohup.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            if previous is not None:  # a handler that was not installed by Python cannot be restored
                signal.signal(number, previous)


class EndRequest:
    """Records the end that signals ask for while the block lasts.

    Ctrl-C and a closed terminal (SIGHUP) ask it to pause, SIGTERM asks for `on_termination`; a stop outweighs a pause.
    A second Ctrl-C raises KeyboardInterrupt.
    """

    def __init__(self, on_termination: Literal["stop", "pause"] = "stop") -> None:
        self.action: str | None = None
        """ "pause" or "stop" once a signal has asked for it."""
        self.signal: signal.Signals | None = None
        """The last signal received."""
        self._on_termination = on_termination
        self._handling = handling(self._handle, *END_SIGNALS)

    def __enter__(self) -> Self:
        self._handling.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._handling.__exit__(*details)

    def received(self, number: signal.Signals) -> None:
        """Called in the main thread after each signal, between two of its bytecodes."""

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        if self.action != "stop":
            self.action = self._on_termination if number == signal.SIGTERM else self.action or "pause"
        self.received(self.signal)
