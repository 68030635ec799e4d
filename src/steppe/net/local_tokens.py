"""Tokens that servers on loopback generate for themselves, to keep out other users of the machine.

Loopback is open to every user of a machine. A server that listens there without a token of the user's generates a
random one and writes it to a file that only this user can read; Steppe's clients find it by the server's address.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import pwd
import secrets
import socket
import stat
from pathlib import Path

from steppe.errors import UserError
from steppe.net.sockets import is_loopback

VARIABLE = "STEPPE_LOOPBACK_TOKEN"
FIRST_USER = 1000
"""The lowest uid of a person's account; lower ones belong to system services."""
NOBODY = 65534
CLOSED_SHELLS = ("nologin", "false", "sync")
LONGEST_TOKEN = 4096


class LocalToken:
    """A random token of one server; `publish` lets this user's clients find it until `remove`."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(32)
        self.files: list[Path] = []
        """The files that hold it, the first address first."""

    def publish(self, host: str, port: int) -> None:
        """Writes it for clients that connect to this address, in place of an earlier server's token."""
        folder = tokens_folder()
        _make_folder(folder)
        file = folder / _file_name(host, port)
        temporary = folder / f".{secrets.token_hex(8)}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w") as out:
                out.write(self.token + "\n")
            temporary.rename(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise _cannot_write(folder, error.strerror or str(error)) from None
        self.files.append(file)

    def remove(self) -> None:
        """Deletes its files unless another server's token has replaced them. May be called again."""
        for file in self.files:
            with contextlib.suppress(OSError):
                if _read(file) == self.token:
                    file.unlink()
        self.files = []


def token_for(listener: socket.socket, host: str, given: str | None) -> LocalToken | None:
    """The token that a server at `listener` generates; None if the user gave one or has the machine to themselves."""
    if given is not None or not is_loopback(host) or not is_wanted():
        return None
    made = LocalToken()
    made.publish(*listener.getsockname()[:2])
    return made


def token_at(host: str, port: int) -> str | None:
    """The token of this user's server at a loopback address; None without a file that only this user can read.

    `host` is the numeric address that a client is connected to: a name can stand for several addresses, and another
    user may listen at one of them.
    """
    try:
        if not ipaddress.ip_address(host).is_loopback:
            return None
        return _read(tokens_folder() / _file_name(host, port))
    except (OSError, ValueError):
        return None


def token_of_peer(sock: socket.socket) -> str | None:
    """The token of the server at the other end of a connection, as `token_at`."""
    try:
        host, port = sock.getpeername()[:2]
    except (OSError, ValueError):
        return None
    return token_at(str(host), int(port))


def my_server(host: str, port: int) -> tuple[str, str | None]:
    """(numeric address, token) for clients that have an address but no connection yet."""
    if host != "localhost":
        return host, token_at(host, port)
    with contextlib.suppress(OSError):
        for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            number = str(entry[4][0])
            if (token := token_at(number, port)) is not None:
                return number, token
    return host, None


def token_sentence(file: Path) -> str:
    """The notice of a server that has generated a token."""
    return f"others use this machine, so a token was made that only you can read: {file}"


def tokens_folder() -> Path:
    """The folder of the tokens: $XDG_STATE_HOME/steppe/tokens, else ~/.local/state/steppe/tokens."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = state if state.is_absolute() else Path.home() / ".local" / "state"
    return base / "steppe" / "tokens"


def is_wanted() -> bool:
    """Whether servers on loopback generate tokens: by STEPPE_LOOPBACK_TOKEN, else if others use this machine."""
    wish = os.environ.get(VARIABLE, "").strip()
    if wish not in ("", "always", "never"):
        raise UserError(f'{VARIABLE} is "{wish}"; set it to always or never, or leave it out')
    return others_use_this_machine() if not wish else wish == "always"


@functools.cache
def others_use_this_machine() -> bool:
    """Whether other people have processes here, or accounts they can log in to.

    Processes count because accounts of a directory such as LDAP are often not listed. Only they count in a Kubernetes
    Pod, whose containers share loopback: nobody logs in there, so the accounts of its image mean nothing.
    """
    mine = os.getuid()
    if _others_have_processes(mine):
        return True
    return "KUBERNETES_SERVICE_HOST" not in os.environ and any(_can_log_in(entry, mine) for entry in pwd.getpwall())


def _others_have_processes(mine: int) -> bool:
    try:
        with os.scandir("/proc") as entries:
            for entry in entries:
                # A process may end meanwhile.
                with contextlib.suppress(OSError):
                    if entry.name.isdigit() and _is_other(entry.stat().st_uid, mine):
                        return True
    except OSError:
        return False
    return False


def _can_log_in(entry: pwd.struct_passwd, mine: int) -> bool:
    return _is_other(entry.pw_uid, mine) and entry.pw_uid < NOBODY and Path(entry.pw_shell).name not in CLOSED_SHELLS


def _is_other(uid: int, mine: int) -> bool:
    """Whether it is another person's uid; root is not counted, since nothing keeps it out."""
    return uid >= FIRST_USER and uid not in (NOBODY, mine)


def _file_name(host: str, port: int) -> str:
    """Such as 127.0.0.1-8000: two users may listen at the same port of two addresses."""
    return f"{ipaddress.ip_address(host).compressed}-{port}"


def _make_folder(folder: Path) -> None:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        # The owner of the parent folder could replace this one.
        found = [each.lstat() for each in (folder, folder.parent)]
        if not all(stat.S_ISDIR(each.st_mode) and each.st_uid == os.getuid() for each in found):
            raise _cannot_write(folder, "it is a link or belongs to somebody else")
        if stat.S_IMODE(found[0].st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError as error:
        raise _cannot_write(folder, error.strerror or str(error)) from None


def _read(file: Path) -> str | None:
    """The token in a file that belongs to this user and that nobody else can read; None for any other file."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as read:
        found = os.fstat(descriptor)
        is_safe = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o600
        token = read.read(LONGEST_TOKEN).decode("ascii").strip() if is_safe else ""
    return token if token.isalnum() else None


def _cannot_write(folder: Path, reason: str) -> UserError:
    return UserError(
        f"others use this machine, and a token that keeps them out cannot be written to {folder}: {reason.lower()}; "
        f"give a token of your own, or set {VARIABLE}=never to let everybody on this machine in"
    )
