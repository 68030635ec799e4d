"""Clients of endpoints for `steppe play`: any server of the Open Inference Protocol V2 or the Seldon v1 dialect."""

from __future__ import annotations

from importlib import import_module

from steppe.errors import UserError
from steppe.serve.clients._base import (
    Client,
    EndpointAccess,
    EndpointAway,
    EndpointFault,
    EpisodeLost,
    ModelDescription,
)
from steppe.specs.loading.suggestions import did_you_mean

__all__ = [
    "PROTOCOLS",
    "Client",
    "EndpointAccess",
    "EndpointAway",
    "EndpointFault",
    "EpisodeLost",
    "ModelDescription",
    "check_protocol",
    "connect",
]

PROTOCOLS = {
    "v2": ("open_inference", "OpenInferenceClient"),
    "v2-grpc": ("open_inference_grpc", "OpenInferenceGrpcClient"),
    "seldon": ("seldon", "SeldonClient"),
}
"""Name of a protocol -> (module, class) of its client, imported when it is used."""


def connect(protocol: str, access: EndpointAccess) -> Client:
    """A client for one thread; nothing is sent before the first question."""
    check_protocol(protocol)
    module, name = PROTOCOLS[protocol]
    return getattr(import_module(f"steppe.serve.clients.{module}"), name)(access)


def check_protocol(word: str) -> None:
    """Refuses an unknown protocol."""
    if word not in PROTOCOLS:
        *first, last = PROTOCOLS
        words = f"{', '.join(first)} or {last}"
        raise UserError(f'unknown protocol "{word}"{did_you_mean(word, PROTOCOLS)}; it is {words}')
