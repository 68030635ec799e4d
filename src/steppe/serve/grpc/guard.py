"""Admission of gRPC calls: checks token, limits and sizes before a message is parsed.

Every method is declared as taking a stream, although clients send one message, since both look the same on the wire.
gRPC calls such a method as soon as the metadata has arrived, so that no message is received, let alone parsed, before
its token was checked. Flow control holds the rest of a message back at the sender until it is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from steppe.errors import MissingExtra, UserError
from steppe.serve.admission import Gate, RequestMemory, RequestRefused
from steppe.serve.grpc import messages, wire
from steppe.serve.http.replies import HttpReply, status_of
from steppe.serve.http.request_metrics import Observer

try:
    import grpc
except ImportError as error:
    raise MissingExtra("gRPC", "serve") from error

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
PROBES = {"ServerLive", "ServerReady"}
"""Methods that anybody may call at any time; their messages are never read."""
TOKEN_KEYS = ("authorization", "x-auth-token", "oauth_token")
"""Metadata keys of the token: Steppe's own, seldon-core's, and those of Seldon's first gateway."""

Method = Callable[[Any], Awaitable[tuple[Any, str]]]
"""Takes a message and returns (message, policy that answered)."""

log = logging.getLogger(__name__)


class Guard:
    """Wraps methods, so that they need not care who calls them."""

    def __init__(self, gate: Gate, observer: Observer) -> None:
        self._gate, self._observer = gate, observer

    def service(
        self, name: str, methods: dict[str, tuple[str, Method]], raw_field: str | None = "raw_input_contents"
    ) -> Any:
        """The gRPC handler of a service; `methods` has (name in metrics, method) by name.

        `raw_field` is the field of its messages for large amounts of bytes; None if there is none.
        """
        return grpc.method_handlers_generic_handler(
            name,
            {
                rpc.name: grpc.stream_unary_rpc_method_handler(
                    self._guarded(rpc, *methods[rpc.name], raw_field),
                    response_serializer=rpc.response.SerializeToString,
                )
                for rpc in messages.methods(name)
            },
        )

    def _guarded(self, rpc: messages.GrpcMethod, operation: str, method: Method, raw_field: str | None) -> Any:
        """The method with admission before it; errors become a status with one sentence."""
        gate, name, known = self._gate, rpc.name, wire.layout(rpc.request.DESCRIPTOR)

        async def call(_: Any, context: Any) -> Any:
            started, address = perf_counter(), _address(context.peer())
            try:
                if name in PROBES:
                    response, policy = await method(None)
                else:
                    response, policy = await enter_and_call(context, address)
            except Exception as error:
                status, words = status_of(error), str(error)
                self._observer.record(operation, HttpReply(status, b"", []), perf_counter() - started, address, name)
                if status == 500:
                    log.error("a call of %s failed", name, exc_info=error)
                    words = "the endpoint had an internal error; see its log"
            else:
                self._observer.record(
                    operation, HttpReply(200, b"", [], policy), perf_counter() - started, address, name
                )
                return response
            # Outside of the handler of the error: the exception that `abort` raises would keep the error, its traceback
            # and the message alive until the next full garbage collection.
            return await context.abort(CODES.get(status, grpc.StatusCode.INTERNAL), words)

        async def enter_and_call(context: Any, address: str) -> Any:
            if gate.needs_token:
                gate.check_token(_token(context.invocation_metadata()))
            gate.begin(address)
            try:
                with RequestMemory(gate, address) as room:
                    data = await self._received(context)
                    room.grow(len(data))
                    return await method(wire.parse(data, rpc.request, known, raw_field))
            finally:
                gate.end(address)

        return call

    async def _received(self, context: Any) -> bytes:
        """The one message of the call as bytes; it must arrive in time."""
        seconds = self._gate.limits.request_seconds
        try:
            async with asyncio.timeout(seconds):
                data = await context.read()
        except TimeoutError:
            raise RequestRefused(408, f"the message did not arrive within {seconds:g} s") from None
        if not isinstance(data, bytes):
            raise UserError("the call ended without a message")
        return data


def _token(metadata: Any) -> str | None:
    shown = dict(metadata or ())
    return next((shown[key] for key in TOKEN_KEYS if key in shown), None)


def _address(peer: str) -> str:
    """The address in a peer such as ipv4:127.0.0.1:40000."""
    return peer.partition(":")[2].rpartition(":")[0] or peer
