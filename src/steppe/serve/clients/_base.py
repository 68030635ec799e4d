"""The interface of clients, the address of an endpoint, and the errors for endpoints that are away."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import numpy as np

from steppe.errors import SteppeError, UserError
from steppe.serve.messages.exchange import Feedback, PolicyAnswer, Question

SCHEMES = {"http": False, "https": True, "grpc": False, "grpcs": True}
"""Scheme of an address -> whether it is encrypted."""


class EndpointAway(Exception):
    """The endpoint cannot answer now but may later; `was_sent`: it may have received the message."""

    def __init__(self, reason: str, *, was_sent: bool = False, pause: float | None = None) -> None:
        super().__init__(reason)
        self.was_sent = was_sent
        self.pause = pause
        """Seconds that the endpoint asks to wait."""


class EpisodeLost(Exception):
    """The endpoint no longer knows this episode; a new one can begin."""


class EndpointFault(SteppeError):
    """The endpoint had a fault, or its answer cannot be used."""


class EndpointAddress(NamedTuple):
    """The parts of an endpoint's URL."""

    is_encrypted: bool
    host: str
    port: int
    prefix: str
    """Stands before every path if the endpoint is behind a proxy: "" or "/policies"."""


@dataclass(frozen=True)
class EndpointAccess:
    """Address and credentials of an endpoint."""

    url: str
    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    """A file of certificates to trust instead of the system's."""
    timeout: float = 30.0
    """Seconds that one answer may take."""
    model: str | None = None
    """The model to ask; None if the server has only one."""

    @cached_property
    def address(self) -> EndpointAddress:
        """The parts of `url`; UserError if it is not the address of an endpoint."""
        wrong = UserError(f'"{self.url}" is not the address of an endpoint; write it as http://127.0.0.1:8000')
        url = self.url if "://" in self.url else f"http://{self.url}"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme not in SCHEMES or not host or parts.query or parts.fragment or parts.username:
            raise wrong
        is_encrypted = SCHEMES[parts.scheme]
        usual = 443 if is_encrypted else 80
        return EndpointAddress(is_encrypted, host, usual if port is None else port, parts.path.rstrip("/"))

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context that checks the endpoint's certificate; None for an address without encryption."""
        if not self.address.is_encrypted:
            return None
        try:
            return ssl.create_default_context(cafile=self.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"cannot read the certificates in {self.tls_ca}: {reason_of(error)}") from None

    def check_host(self) -> None:
        """Refuses an unknown host name, for which waiting is useless. Sends nothing to the endpoint."""
        try:
            socket.getaddrinfo(self.address.host, self.address.port)
        except (socket.gaierror, UnicodeError) as error:
            known = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
            if isinstance(error, UnicodeError) or error.errno in known:
                shown = self.address.host[:100]
                raise UserError(
                    f'there is no host "{shown}"; check the address, such as http://127.0.0.1:8000'
                ) from None


@dataclass(frozen=True)
class ModelDescription:
    """A server's description of the model."""

    model: str
    shape: tuple[int, ...] | None
    """Shape of one observation; None if the protocol does not say."""
    applies_once: bool
    """Whether repeated feedback counts once, so that it may be sent again after a lost connection."""
    takes_feedback: bool = True
    environment: str | None = None
    """The environment of its training, if the server says so."""


class Client(Protocol):
    """One connection to one endpoint, for one thread; raises `EndpointAway` if trying again may help."""

    def describe(self) -> ModelDescription:
        """Asks the server for its description."""

    def answer(self, question: Question) -> PolicyAnswer:
        """The actions for observations [B, ...], and who chose them."""

    def feedback(self, feedback: Feedback) -> None:
        """Sends a reward; returns once it counts."""

    def close(self) -> None:
        """Closes the connection; may be called again."""


def sequence_parameters(question: Question) -> dict[str, Any]:
    """The parameters of a question that are set."""
    words: dict[str, Any] = {}
    if question.sequence_id is not None:
        words["sequence_id"] = question.sequence_id
        words["sequence_start"] = question.sequence_start
        words["sequence_end"] = question.sequence_end
    if question.deterministic is not None:
        words["deterministic"] = question.deterministic
    return words


def checked_rows(actions: np.ndarray, question: Question) -> np.ndarray:
    """The actions [B, ...], checked to be finite and one for each observation."""
    if actions.ndim == 0 or len(actions) != len(question.observations):
        raise EndpointFault(
            f"the endpoint sent actions of shape {actions.shape} for {len(question.observations)} observations"
        )
    if not np.all(np.isfinite(actions)):
        raise EndpointFault("the endpoint sent actions that are NaN or infinite")
    return actions


def reason_of(error: BaseException) -> str:
    """The reason of a failed connection, in the system's words."""
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return words[:1].lower() + words[1:]
