"""Connects a run to Ray: joins the Ray at an address, or starts one and stops it again.

    with ray_session(spec.ray, cpus=4.5) as session:
        worker = ray.remote(Worker).options(num_cpus=spec.ray.cpus_per_worker).remote(...)

`cpus` are the CPUs that all actors ask for together; a Ray that is started here has that many, whatever the machine
has. `session.address` is where other machines join. An engine enters the context in `begin` and leaves it in `close`
(`contextlib.ExitStack`). Import `ray` only inside the context: Ray reads environment variables at its first import.

A Ray that is started here listens on loopback, or, with `spec.port`, on every interface. Either way nothing runs on it
without its token: a random one on loopback, else that of RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token. Its
processes end with the context, and with this process, however it dies.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from steppe.compat.ray_private import (
    LAUNCHER,
    LOOPBACK_SWITCH,
    NICENESS,
    TIMED_OUT,
    has_node_here,
    messages_to,
    reread_environment,
)
from steppe.errors import MissingExtra, UserError
from steppe.runners.ray import ray_reaper
from steppe.specs.running.distributed import RaySpec, TLSSpec

CONNECT_SECONDS = 10.0
"""How long an address may take to answer."""
START_SECONDS = 90.0
"""How long Ray's processes may take to start on a busy machine."""
PREFIX = "steppe-ray-"
LONGEST_ROOT = 20
"""Ray puts sockets below this folder, whose paths may not be longer than 107 bytes."""
TLS_SWITCH = "RAY_USE_TLS"
MODE_SWITCH = "RAY_AUTH_MODE"
"""Whether Ray asks for a token: "token" or "disabled"."""

log = logging.getLogger(__name__)


class RaySession(NamedTuple):
    """A Ray that this process is connected to."""

    address: str
    """The address for others to join."""
    is_own: bool
    """Whether it was started for this session."""


@contextmanager
def ray_session(spec: RaySpec, *, cpus: float) -> Iterator[RaySession]:
    """Connects this process to Ray; see the docstring of this module."""
    with ExitStack() as stack:
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            # The caller has connected this process, and ends the connection.
            yield RaySession(ray.get_runtime_context().gcs_address, is_own=False)
            return
        if spec.address is not None:
            session = stack.enter_context(_joined(spec.address, spec))
        else:
            session = stack.enter_context(_started(spec, math.ceil(cpus)))
        yield session


def has_token() -> bool:
    """Whether this machine has a token for Ray."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or Path(path).is_file()


def die_with_parent() -> None:
    """Asks Linux to end the calling process when the one that started it ends."""
    if sys.platform == "linux":
        import ctypes

        set_death_signal = 1  # PR_SET_PDEATHSIG in linux/prctl.h
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


@contextmanager
def _started(spec: RaySpec, cpus: int) -> Iterator[RaySession]:
    """A new Ray with one node: this machine."""
    listens = spec.port is not None
    if listens and not has_token():
        raise UserError(
            f"a Ray that listens on port {spec.port} for other machines needs a token that they know too; set "
            'RAY_AUTH_TOKEN to the same secret everywhere (python -c "import secrets; print(secrets.token_hex(32))")'
        )
    # Without niceness 0 Ray's workers would yield to every other program, and to their own driver.
    changes = {MODE_SWITCH: "token", LOOPBACK_SWITCH: "1" if listens else "0", NICENESS: "0"}
    if not listens:
        changes |= {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with _private_folder() as folder, _environment(changes, spec.tls) as ray:
        if listens:
            words = ["--head", f"--port={spec.port}", f"--num-cpus={cpus}", "--include-dashboard=false"]
            words += [f"--object-store-memory={_bytes(spec)}", f"--temp-dir={folder}"]
            with _node(words, folder, f"port {spec.port} is in use"), _connected(ray, f"127.0.0.1:{spec.port}"):
                yield RaySession(ray.get_runtime_context().gcs_address, is_own=True)
            return
        options = {
            "num_cpus": cpus,
            "include_dashboard": False,
            "object_store_memory": _bytes(spec),
            "_temp_dir": str(folder),
        }
        with _connected(ray, "local", **options):
            yield RaySession(ray.get_runtime_context().gcs_address, is_own=True)


@contextmanager
def _joined(address: str, spec: RaySpec) -> Iterator[RaySession]:
    """Joins a running Ray; if it has no node on this machine, one without CPUs is started here."""
    is_client = address.startswith("ray://")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    is_here = _is_loopback(host)
    changes = {LOOPBACK_SWITCH: "0" if is_here else "1"}
    if has_token() and MODE_SWITCH not in os.environ:
        changes[MODE_SWITCH] = "token"
    with ExitStack() as stack:
        ray = stack.enter_context(_environment(changes, spec.tls))
        _check_answer(host, int(port), spec.tls)
        if not is_client and not is_here and not has_node_here(host, port):
            _check_token(address)
            folder = stack.enter_context(_private_folder())
            words = [f"--address={address}", "--num-cpus=0", f"--object-store-memory={_bytes(spec)}"]
            stack.enter_context(_node(words, folder, f"the Ray at {address} did not take this machine in"))
        stack.enter_context(_connected(ray, address))
        if not has_token() and MODE_SWITCH not in os.environ:
            _warn_if_open(ray, address)
        yield RaySession(address, is_own=False)


def _check_token(address: str) -> None:
    """Refuses to start a node without a token: anybody who can reach it could run programs on this machine."""
    if has_token() or MODE_SWITCH in os.environ:
        return
    raise UserError(
        f"to join the Ray at {address} this machine becomes a part of it, where without a token whoever reaches it "
        "could run programs; set RAY_AUTH_TOKEN to the token of that Ray, or, where its network is yours alone, "
        f"{MODE_SWITCH}=disabled"
    )


def _warn_if_open(ray: Any, address: str) -> None:
    """Warns if the joined Ray listens on a network and takes no token."""
    machines = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    if not all(map(_is_loopback, machines)):
        log.warning(
            "the Ray at %s takes no token, so that whoever reaches its machines can run programs there; start it with "
            "%s=token and the same RAY_AUTH_TOKEN everywhere, or, where its network is yours alone, set %s=disabled",
            *(address, MODE_SWITCH, MODE_SWITCH),
        )


@contextmanager
def _connected(ray: Any, address: str, **options: Any) -> Iterator[None]:
    """This process as a driver of the Ray at `address`."""
    is_main = threading.current_thread() is threading.main_thread()
    # Ray installs a handler of its own, which would end a run without a checkpoint.
    handler = signal.getsignal(signal.SIGTERM) if is_main else None
    with messages_to(lambda line: log.info("Ray: %s", line)):
        try:
            with warnings.catch_warnings():
                # JAX warns of forks, but these become other programs at once.
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                _initialize(ray, address, options)
        except Exception as error:
            with suppress(Exception):
                ray.shutdown()
            where = "could not be started" if address == "local" else f"at {address} could not be joined"
            raise UserError(f"a Ray {where}: {_reason(error)}") from error
        finally:
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)
        try:
            yield
        finally:
            ray.shutdown()


def _initialize(ray: Any, address: str, options: dict[str, Any]) -> None:
    """Calls `ray.init`, a second time if Ray's processes did not start within its 30 s, as on a busy machine."""
    for is_last in (False, True):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
            return
        except Exception as error:
            if is_last or TIMED_OUT not in str(error):
                raise
            log.warning("Ray took too long to start; it is started once more")
            ray.shutdown()


@contextmanager
def _node(words: list[str], folder: Path, failure: str) -> Iterator[None]:
    """Runs Ray's own processes on this machine, which end with the context or with this process."""
    program = f"from {__name__} import die_with_parent; die_with_parent(); {LAUNCHER}"
    command = [sys.executable, "-c", program, "start", "--block", "--disable-usage-stats", "--log-color=false", *words]
    output = folder / "start.txt"
    with output.open("wb") as file:
        # In a session of its own, so that Ctrl-C only reaches the run, which still has a checkpoint to write.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while b"--block" not in output.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                lines = output.read_text(errors="replace").strip().splitlines()
                raise UserError(f"a Ray could not be started: {failure}? ({lines[-1].strip() if lines else 'no word'})")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(CONNECT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _environment(changes: dict[str, str], tls: TLSSpec | None) -> Iterator[Any]:
    """The module `ray` with changed environment variables, which are restored afterwards."""
    changes = changes | (_tls_variables(tls) if tls is not None else {})
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield _configured_ray()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _configured_ray()


def _configured_ray() -> Any:
    try:
        return reread_environment()
    except ImportError as error:
        raise MissingExtra("a run on Ray", "cluster") from error


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A new folder that only this user can read; it is removed, and all processes that use it are ended, with the
    context or with this process."""
    root = Path(tempfile.gettempdir())
    if len(str(root)) > LONGEST_ROOT:
        root = Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    command = [sys.executable, "-I", "-S", ray_reaper.__file__, str(folder), str(os.getpid())]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        # Ray makes its own folder readable for every user of the machine, so it lies inside this one.
        inner = folder / "r"
        inner.mkdir()
        yield inner
    finally:
        reaper.communicate()


def _tls_variables(tls: TLSSpec) -> dict[str, str]:
    files = {"certificate": "SERVER_CERT", "key": "SERVER_KEY", "authority": "CA_CERT"}
    for name in files:
        if not Path(getattr(tls, name)).is_file():
            raise UserError(f"ray.tls.{name}: there is no file {getattr(tls, name)}")
    return {TLS_SWITCH: "1"} | {
        f"RAY_TLS_{word}": str(Path(getattr(tls, name)).absolute()) for name, word in files.items()
    }


def _check_answer(host: str, port: int, tls: TLSSpec | None) -> None:
    """Checks quickly whether a Ray answers: Ray itself would try for a minute."""
    way_out = 'check ray.address (--address), or have a Ray started here (platform "local"); "ray status" there tells'
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS) as plain:
            plain.settimeout(CONNECT_SECONDS)
            connection = _encrypted(plain, tls) if tls is not None else plain
            # The beginning of HTTP/2 (RFC 9113, section 3.4), which Ray speaks, with no settings.
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            head = b""
            while len(head) < 4 and (more := connection.recv(9)):
                head += more
    except ssl.SSLError as error:
        raise UserError(
            f"the Ray at {host}:{port} does not accept ray.tls ({error.reason}); compare the files"
        ) from error
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise UserError(f"nobody answers at {host}:{port} ({reason}); {way_out}") from error
    if head[3:4] != b"\x04":
        encrypted = "" if tls is not None else ", or one that wants ray.tls"
        raise UserError(f"what answers at {host}:{port} is no Ray{encrypted}; {way_out}")


def _encrypted(connection: socket.socket, tls: TLSSpec) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=tls.authority)
    context.check_hostname = False
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(connection)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _bytes(spec: RaySpec) -> int:
    return int(spec.object_store * 2**30)


def _reason(error: Exception) -> str:
    """The first sentence of the root cause, and a way out if one is known."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    text = str(root) or type(root).__name__
    sentence = text.strip().splitlines()[0].partition(". ")[0].rstrip(".")
    if "oken" in text or "nauthenticated" in text:
        return f"{sentence}; set RAY_AUTH_TOKEN to the token of that Ray"
    if "ersion mismatch" in text:
        return f"{sentence}; install the same versions of Ray and Python on all machines"
    return sentence
