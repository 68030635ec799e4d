"""Sockets that servers listen at."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

from steppe.errors import UserError


def is_loopback(host: str) -> bool:
    """Whether all addresses of a host can be reached from this machine only."""
    return all(ipaddress.ip_address(entry[4][0].split("%")[0]).is_loopback for entry in _resolve(host, 0))


def listen(host: str, port: int, backlog: int = 1024) -> socket.socket:
    """A listening socket; port 0 is any free one."""
    family, _, _, _, address = _resolve(host, port)[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=backlog)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UserError(f"cannot listen at {host}:{port}: {reason}; choose another --host or --port") from None


def _resolve(host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UserError(
            f'there is no host "{host}" here to serve at; use --host 127.0.0.1 or an address of this machine'
        ) from None
