"""Opens the learner's door as an experiment or a program wishes it."""

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
    """What opens the door, at the host it is told where the wishes name none.

    Without a token of the user's one is made up, for the workers that the run starts itself.
    """

    def open_door(host: str) -> tuple[WorkerServer, LearnerAccess]:
        access = access_from(wishes.token_file, wishes.tls_cert, wishes.tls_key)
        port = 0
        if wishes.address is not None:
            host, port = split_address(wishes.address)
        access = access if access.token is not None else replace(access, token=secrets.token_hex(32))
        return open_server(wishes, host, port, access), access

    return open_door


def open_server(wishes: AsyncSpec, host: str, port: int, access: LearnerAccess) -> WorkerServer:
    """Listens at (host, port)."""
    inbox = Inbox(wishes.queue_size, wishes.patience)
    return WorkerServer(host, port, access, inbox, Membership(), wishes.worker_timeout)
