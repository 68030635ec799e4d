"""Private parts of Ray, and its environment variables that are not documented. Seen in ray 2.60.0."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Whether Ray talks to other machines at all ("1" or "0"); named after the systems where it does not by default."""
NICENESS = "RAY_worker_niceness"
"""How much Ray's workers yield to other programs: 15 by default, which slows down those that train."""
TIMED_OUT = "timed out during startup"
"""A part of the error if Ray's processes need more than the 30 s that it gives them; there is no setting for that."""
LAUNCHER = "from ray.scripts.scripts import main; main()"
"""A program like the command `ray`, for processes that must do something before it."""


def reread_environment() -> Any:
    """The module `ray`, after it has read its environment variables again.

    Ray reads them when it is first imported. Public functions cannot change them afterwards, but one process may train
    several experiments, on different Rays.
    """
    import ray
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    talks = {"1": True, "0": False}.get(os.environ.get(LOOPBACK_SWITCH, ""), sys.platform == "linux")
    ray_constants.ENABLE_RAY_CLUSTER = talks
    return ray


@contextmanager
def messages_to(write: Callable[[str], None]) -> Iterator[None]:
    """Hands what Ray would print, such as which of its processes has died, to `write`: it would spoil a display."""
    import ray

    module: Any = ray._private.worker  # type: ignore[attr-defined]
    before = module.print_to_stdstream

    def print_to_stdstream(data: dict[str, Any], ignore_prefix: bool = False) -> None:
        for line in data.get("lines", ()):
            write(str(line).partition("\n")[0])

    module.print_to_stdstream = print_to_stdstream
    try:
        yield
    finally:
        module.print_to_stdstream = before


def has_node_here(host: str, port: str) -> bool:
    """Whether a node of the Ray at host:port runs on this machine, as Ray finds it in the list of processes."""
    from ray._private import services

    addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    services.find_gcs_addresses.cache_clear()  # type: ignore[attr-defined]
    known = (address.rpartition(":") for address in services.find_gcs_addresses())
    return any(its_port == port and its_host.strip("[]") in addresses for its_host, _, its_port in known)
