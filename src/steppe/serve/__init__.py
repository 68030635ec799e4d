"""Serving policies: graphs of them, routed by bandits that learn from feedback.

endpoint = load_endpoint("cartpole")
await endpoint.start()
answer = endpoint.answer(Question(endpoint.check(observation), sequence_id="episode 1"))
await endpoint.feedback(Feedback(1.0, id=answer.id))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steppe.serve.endpoint import Endpoint, Limits
    from steppe.serve.loading import load_endpoint
    from steppe.serve.messages.exchange import Answer, Feedback, NotFound, Question, Receipt, Unavailable

_HOMES = {
    "load_endpoint": "loading",
    "Endpoint": "endpoint",
    "Limits": "endpoint",
    "Question": "messages.exchange",
    "Answer": "messages.exchange",
    "Feedback": "messages.exchange",
    "Receipt": "messages.exchange",
    "NotFound": "messages.exchange",
    "Unavailable": "messages.exchange",
}
__all__ = [
    "Answer",
    "Endpoint",
    "Feedback",
    "Limits",
    "NotFound",
    "Question",
    "Receipt",
    "Unavailable",
    "load_endpoint",
]


def __getattr__(name: str) -> Any:
    # A client, or a command that only reads a report, must not pay for the endpoint's imports.
    if name in _HOMES:
        return getattr(import_module(f"steppe.serve.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
