"""Starts the gRPC server, in the same event loop as the HTTP server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import UserError
from steppe.serve.admission import Gate
from steppe.serve.endpoint import Endpoint
from steppe.serve.grpc.guard import Guard, grpc
from steppe.serve.grpc.seldon import SeldonMethods
from steppe.serve.grpc.service import OpenInferenceMethods
from steppe.serve.http.request_metrics import Observer
from steppe.serve.question_batches import Batcher

if TYPE_CHECKING:
    from steppe.serve.server import ServerConfig

MAX_STREAMS = 128
"""Most calls in progress on one connection."""
MAX_METADATA_BYTES = 1 << 14
"""Most bytes in the metadata of a call."""
IDLE_SECONDS = 75
"""Seconds that a connection may be open without a call, as by HTTP; clients reconnect by themselves."""
ROOM_FOR_PROBES = 64
"""Calls allowed beyond the limit of the gate, so that probes are answered when it is full."""


async def start(
    endpoint: Endpoint, gate: Gate, batcher: Batcher, observer: Observer, config: ServerConfig, version: str
) -> tuple[Any, int]:
    """Starts a server; returns (server, its real port)."""
    limits = gate.limits
    options = [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        # Keeps the window of a message small that is not read yet.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.server_handshake_timeout_ms", round(limits.request_seconds * 1000)),
        # Otherwise two servers could listen at one port, and each would get a part of the questions.
        ("grpc.so_reuseport", 0),
        ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.concurrent + ROOM_FOR_PROBES)
    guard = Guard(gate, observer)
    for service in (OpenInferenceMethods(endpoint, gate, batcher, version), SeldonMethods(endpoint, batcher)):
        server.add_generic_rpc_handlers(service.handlers(guard))
    host = f"[{config.host}]" if ":" in config.host else config.host
    where = f"{host}:{config.grpc_port}"
    try:
        if config.tls_cert is None or config.tls_key is None:
            port = server.add_insecure_port(where)
        else:
            pair = (Path(config.tls_key).read_bytes(), Path(config.tls_cert).read_bytes())
            port = server.add_secure_port(where, grpc.ssl_server_credentials([pair]))
    except RuntimeError:
        port = 0
    if port == 0:
        raise UserError(f"cannot listen for gRPC at {where}; choose another --grpc-port")
    await server.start()
    return server, port
