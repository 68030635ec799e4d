"""How `steppe play` talks to an endpoint: any server of the Open Inference Protocol V2, or of the Seldon v1 dialect."""

from __future__ import annotations

from collections.abc import Callable

from steppe.errors import UserError
from steppe.serve.clients._base import Access, Away, Client, Described, EndpointFault, EpisodeLost
from steppe.specs.loading.suggestions import did_you_mean

__all__ = [
    "PROTOCOLS",
    "Access",
    "Away",
    "Client",
    "Described",
    "EndpointFault",
    "EpisodeLost",
    "check_protocol",
    "connect",
]


def connect(protocol: str, access: Access) -> Client:
    """A client for one thread; nothing is sent before the first question."""
    check_protocol(protocol)
    return PROTOCOLS[protocol](access)


def check_protocol(word: str) -> None:
    """Refuses a word that names no protocol."""
    if word not in PROTOCOLS:
        raise UserError(f'unknown protocol "{word}"{did_you_mean(word, PROTOCOLS)}; it is {_either(PROTOCOLS)}')


def _open_inference(access: Access) -> Client:
    from steppe.serve.clients.open_inference import OpenInference

    return OpenInference(access)


def _open_inference_grpc(access: Access) -> Client:
    from steppe.serve.clients.open_inference_grpc import OpenInferenceGrpc

    return OpenInferenceGrpc(access)


def _seldon(access: Access) -> Client:
    from steppe.serve.clients.seldon import Seldon

    return Seldon(access)


def _either(words: dict[str, Callable[[Access], Client]]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"


PROTOCOLS: dict[str, Callable[[Access], Client]] = {
    "v2": _open_inference,
    "v2-grpc": _open_inference_grpc,
    "seldon": _seldon,
}
"""Word -> what makes its client."""
