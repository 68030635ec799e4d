"""Object storage on this machine: S3 by moto's server, Google's by a fake; and a gate that can be closed."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from google_storage import GoogleStorage
from google_storage_server import AS_GOOGLE, GOOGLE_KEY, google_storage
from ports import free_port
from processes import wait_until

BUCKET = "results"
KINDS = ("s3", "gs")
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class Cloud:
    """A store with one bucket, at a port of this machine."""

    kind: str
    port: int
    keys: dict[str, str]
    """The variables with the credentials of clients."""
    google: GoogleStorage | None = None

    def place(self, bucket: str = BUCKET) -> str:
        """The URL of an unused folder."""
        return f"{self.kind}://{bucket}/{uuid4().hex}"

    def address(self, port: int | None = None, host: str = "127.0.0.1") -> dict[str, str]:
        """The variable with the store's address, at its own port or at another one."""
        url = f"http://{host}:{port or self.port}"
        return {"AWS_ENDPOINT_URL": url} if self.kind == "s3" else {"STORAGE_EMULATOR_HOST": url + AS_GOOGLE}

    def variables(self) -> dict[str, str]:
        """All variables that clients need."""
        return self.keys | self.address()


@contextlib.contextmanager
def cloud_of(kind: str, folder: Path, host: str = "127.0.0.1") -> Iterator[Cloud]:
    """Runs a store until the end of the block; skips the test if its packages are not installed."""
    for package in ("s3fs", "moto") if kind == "s3" else ("gcsfs",):
        pytest.importorskip(package)
    if kind == "s3":
        with s3_server(folder, host) as port:
            yield Cloud(kind, port, KEYS)
        return
    with google_storage(folder, host) as (google, port, key):
        google.buckets[BUCKET] = {}
        yield Cloud(kind, port, {GOOGLE_KEY: str(key)}, google)


@contextlib.contextmanager
def s3_server(folder: Path, host: str = "127.0.0.1") -> Iterator[int]:
    """Runs moto's server with one empty bucket until the end of the block; yields its port."""
    port = free_port()
    with (folder / "moto.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)], stdout=log, stderr=log
        )
    try:
        wait_until(lambda: _answers(port), "moto to listen", pause=0.1)
        make_bucket(f"http://127.0.0.1:{port}")
        yield port
    finally:
        process.kill()
        process.wait(30)


def make_bucket(endpoint: str, name: str = BUCKET) -> None:
    """Makes a bucket."""
    import boto3

    boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    ).create_bucket(Bucket=name)


def client_of(url: str) -> tuple[Any, str]:
    """(fsspec's own client for a store, the path in it), without any code of Steppe."""
    import fsspec

    options = {"skip_instance_cache": True, "use_listings_cache": False}
    if not url.startswith("gs://"):
        return fsspec.core.url_to_fs(url, **options)
    from gcsfs.core import GCSFileSystem

    # The default client asks for the kind of bucket by gRPC, which the fake does not support.
    return GCSFileSystem(token="google_default", **options), url.removeprefix("gs://")


class Gate:
    """Forwards connections to a port while it is open."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = free_port()
        self._listener: socket.socket | None = None
        self._passing: list[socket.socket] = []

    def open(self) -> None:
        """Accepts connections from now on."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def shut(self) -> None:
        """Ends all connections, and accepts no new ones."""
        if self._listener is not None:
            # Without this, accept would still return one more connection.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for each in self._passing:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._passing.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                inner, _ = listener.accept()
            except OSError:
                return
            outer = socket.create_connection(("127.0.0.1", self._target))
            self._passing += [inner, outer]
            for source, sink in ((inner, outer), (outer, inner)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder that must be stored."""
    found = {}
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        for name in names:
            if (not name.startswith(".") or name == ".pod.json") and name != "request.json":
                path = Path(place, name)
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(1 << 16):
            sink.sendall(block)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
