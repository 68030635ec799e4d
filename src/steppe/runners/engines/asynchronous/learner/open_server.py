"""Opens the learner's server with the settings of an experiment."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from steppe.runners.engines.asynchronous.learner.inbox import Inbox
from steppe.runners.engines.asynchronous.learner.membership import Membership
from steppe.runners.engines.asynchronous.learner.worker_server import WorkerServer
from steppe.runners.engines.asynchronous.wire.access import LearnerAccess, access_from
from steppe.specs.running.asynchronous import AsyncSpec
from steppe.specs.running.connections import split_address


def server_opener(wishes: AsyncSpec) -> Callable[[str], tuple[WorkerServer, LearnerAccess]]:
    """Returns a function that opens the server at a host, or at `asynchronous.address` if that is given.

    Without a token of the user's a random one is made, for the workers that the run starts itself.
    """

    def opened(host: str) -> tuple[WorkerServer, LearnerAccess]:
        access = access_from(wishes.token_file, wishes.tls_cert, wishes.tls_key)
        port = 0
        if wishes.address is not None:
            host, port = split_address(wishes.address)
        access = access if access.token is not None else replace(access, token=secrets.token_hex(32))
        return open_server(wishes, host, port, access), access

    return opened


def open_server(wishes: AsyncSpec, host: str, port: int, access: LearnerAccess) -> WorkerServer:
    """A server that listens at (host, port)."""
    inbox = Inbox(wishes.queue_size, wishes.patience)
    return WorkerServer(host, port, access, inbox, Membership(), wishes.worker_timeout)
