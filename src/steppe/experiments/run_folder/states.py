"""The state machine of an experiment: one table of transitions, and one function that applies it."""

from __future__ import annotations

from typing import Literal

from steppe.errors import StateError
from steppe.experiments.hints import Ways, commands

State = Literal["created", "starting", "running", "pausing", "paused", "completed", "failed", "stopped"]
Event = Literal[
    "start", "resume", "train", "ask_pause", "pause", "complete", "fail", "withdraw", "stop", "renew", "delete"
]

STATES: tuple[State, ...] = (
    "created",
    "starting",
    "running",
    "pausing",
    "paused",
    "completed",
    "failed",
    "stopped",
)

LIVE: frozenset[State] = frozenset({"starting", "running", "pausing"})
"""The states in which a process owns the experiment."""

ENDED: frozenset[State] = frozenset({"paused", "completed", "failed", "stopped"})
"""The states of a trained experiment that no process owns."""

TRANSITIONS: dict[tuple[State, Event], State] = {
    ("created", "start"): "starting",
    ("paused", "resume"): "starting",
    ("stopped", "resume"): "starting",
    ("failed", "resume"): "starting",
    ("completed", "resume"): "starting",
    ("starting", "train"): "running",
    ("starting", "ask_pause"): "pausing",
    ("running", "ask_pause"): "pausing",
    ("pausing", "ask_pause"): "pausing",
    ("pausing", "pause"): "paused",
    ("running", "complete"): "completed",
    ("pausing", "complete"): "completed",
    ("starting", "withdraw"): "completed",
    ("starting", "fail"): "failed",
    ("running", "fail"): "failed",
    ("pausing", "fail"): "failed",
    ("starting", "stop"): "stopped",
    ("running", "stop"): "stopped",
    ("pausing", "stop"): "stopped",
    ("paused", "stop"): "stopped",
    ("created", "renew"): "created",
    ("paused", "renew"): "created",
    ("completed", "renew"): "created",
    ("failed", "renew"): "created",
    ("stopped", "renew"): "created",
    ("created", "delete"): "created",
    ("paused", "delete"): "paused",
    ("completed", "delete"): "completed",
    ("failed", "delete"): "failed",
    ("stopped", "delete"): "stopped",
}

_ASKED: dict[Event, str] = {
    "start": "started",
    "resume": "resumed",
    "train": "called running",
    "ask_pause": "paused",
    "pause": "paused",
    "complete": "completed",
    "fail": "called failed",
    "withdraw": "called completed again",
    "stop": "stopped",
    "renew": "started anew",
    "delete": "deleted",
}


def stands(state: str) -> str:
    """The state in a sentence: `is running`, `has failed`."""
    return "has failed" if state == "failed" else f"is {state}"


def advance(state: State, event: Event, name: str = "", ways: Ways | None = None) -> State:
    """The state after `event`; a StateError if the table has no such transition."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        called = f'experiment "{name}"' if name else "the experiment"
        if state == _ASKED[event]:
            raise StateError(f"{called} {stands(state)} already")
        way_out = _way_out(state, event, ways or commands(name or "NAME"))
        raise StateError(f"{called} {stands(state)} and cannot be {_ASKED[event]}{way_out}")
    return following


def _way_out(state: State, event: Event, ways: Ways) -> str:
    if event == "start" and state in ENDED:
        return f"; to train on use: {ways.resume}, to start anew: {ways.restart} (the old results are kept beside)"
    if event in ("start", "resume", "renew", "delete") and state in LIVE:
        return f"; pause or stop it first: {ways.stop}"
    if state == "created":
        return f"; it has not been started yet: {ways.start}"
    return ""
