"""Environment servers: real ones in a thread or a process, and scripted ones that misbehave on purpose."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from ports import free_port

from steppe.envs.remote.environment_server import EnvironmentServer
from steppe.specs.environment import EnvironmentSpec

TOYS = Path(__file__).parents[1] / "envs" / "toys"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from steppe.envs.remote.environment_server import EnvironmentServer
from steppe.specs.environment import EnvironmentSpec
server = EnvironmentServer(EnvironmentSpec(id=sys.argv[2], settings=eval(sys.argv[4])), "127.0.0.1", int(sys.argv[3]))
print(server.address[1], flush=True)
server.serve()
"""


@contextlib.contextmanager
def serving(id: str, *, token: str | None = None, tls: ssl.SSLContext | None = None, **more: Any) -> Iterator[str]:
    """Runs a server in a thread of this process and yields its address."""
    max_envs = more.pop("max_envs", 256)
    server = EnvironmentServer(
        EnvironmentSpec(id=id, settings=more), "127.0.0.1", 0, token=token, tls=tls, max_envs=max_envs
    )
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield f"127.0.0.1:{server.address[1]}"
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()


class ServerProcess:
    """A server in a process of its own, which can be killed and started again at the same port."""

    def __init__(self, id: str, port: int | None = None, **settings: Any) -> None:
        port = port or free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(TOYS), id, str(port), repr(settings)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.address = f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(120)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Line:
    """A connection of a scripted server, written from the documentation of the protocol without Steppe's code."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def read(self) -> dict[str, Any]:
        (length,) = struct.unpack(">I", self._exactly(4))
        return msgpack.unpackb(self._exactly(length))

    def write(self, message: dict[str, Any]) -> None:
        self.sock.sendall(frame(message))

    def welcome(self, count: int, **spaces: Any) -> None:
        """Answers the greeting and the request for `count` environments with two observed numbers and two actions."""
        assert self.read()["op"] == "hello"
        self.write({"op": "welcome", "version": 1, "server": "a test", "environment": "Scripted"})
        make = self.read()
        assert (make["op"], make["count"]) == ("make", count)
        box = {"type": "box", "shape": [2], "low": [None], "high": [None], "dtype": "float32"}
        made = {"observation_space": box, "action_space": {"type": "discrete", "n": 2, "start": 0}, "limit": 9}
        self.write({"op": "made", **made, **spaces})

    def begin(self, observations: Any) -> dict[str, Any]:
        """Answers a reset and returns the request."""
        request = self.read()
        assert request["op"] == "reset"
        self.write({"op": "began", "observations": array(observations)})
        return request

    def step(self, successors: Any, **more: Any) -> dict[str, Any]:
        """Answers a step, in which no episode ends unless `more` says so, and returns the request."""
        request = self.read()
        assert request["op"] == "step"
        self.write(stepped(successors, **more))
        return request

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise ConnectionError
            data += part
        return data


Script = Callable[[Line], Any]


@contextlib.contextmanager
def scripted(*scripts: Script) -> Iterator[str]:
    """Runs a server that follows one script for each connection in turn and then hangs up.

    Yields its address. A failure in a script fails the test.
    """
    # Clients reconnect after it has ended, so no other server may get its port.
    listener = socket.create_server(("127.0.0.1", free_port()))
    failures: list[BaseException] = []

    def serve() -> None:
        for script in scripts:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                sock.settimeout(120)
                try:
                    script(Line(sock))
                except (ConnectionError, TimeoutError):
                    pass
                except BaseException as error:
                    failures.append(error)
        hang_up()

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # closing alone would not wake a thread that waits in accept
        listener.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        hang_up()
        thread.join(30)
    if failures:
        raise failures[0]


def frame(message: Any) -> bytes:
    body = msgpack.packb(message)
    return struct.pack(">I", len(body)) + body


def array(values: Any, dtype: str = "float32") -> dict[str, Any]:
    """An array in the documented format; one that is in this format already stays as it is."""
    if isinstance(values, dict):
        return values
    values = np.asarray(values, dtype)
    return {"dtype": dtype, "shape": list(values.shape), "data": values.tobytes()}


def stepped(successors: Any, rewards: Any = None, terminated: Any = None, **more: Any) -> dict[str, Any]:
    count = len(successors)
    return {
        "op": "stepped",
        "next_observations": array(successors),
        "rewards": array(np.zeros(count) if rewards is None else rewards),
        "terminated": array(np.zeros(count) if terminated is None else terminated, "bool"),
        "truncated": array(np.zeros(count), "bool"),
        **more,
    }
