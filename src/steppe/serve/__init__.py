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
    from steppe.serve.endpoint import Endpoint
    from steppe.serve.limits import EndpointLimits
    from steppe.serve.loading import load_endpoint
    from steppe.serve.messages.exchange import Feedback, NotFound, PolicyAnswer, Question, Receipt, Unavailable

_MODULES = {
    "loading": ("load_endpoint",),
    "endpoint": ("Endpoint",),
    "limits": ("EndpointLimits",),
    "messages.exchange": ("Feedback", "NotFound", "PolicyAnswer", "Question", "Receipt", "Unavailable"),
}
__all__ = [
    "Endpoint",
    "EndpointLimits",
    "Feedback",
    "NotFound",
    "PolicyAnswer",
    "Question",
    "Receipt",
    "Unavailable",
    "load_endpoint",
]


def __getattr__(name: str) -> Any:
    # Imported lazily, so that clients and commands that only read a report start quickly.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"steppe.serve.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
