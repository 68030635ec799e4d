"""Tokens that servers on loopback generate if other users share the machine."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Command, Steppe, wait_until

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import UserError
from steppe.net import local_tokens
from steppe.net.local_tokens import LocalToken, my_server, others_use_this_machine, token_at, token_for
from steppe.specs.environment import EnvironmentSpec


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tokens in this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("STEPPE_LOOPBACK_TOKEN", "always")
    return tmp_path / "state"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def test_only_the_owner_can_read_a_token_and_it_is_deleted_at_the_end(state, listener):
    made = token_for(listener, "127.0.0.1", None)
    assert made is not None
    (file,) = made.files
    port = listener.getsockname()[1]
    assert file == state / "steppe" / "tokens" / f"127.0.0.1-{port}"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert file.read_text() == made.token + "\n"
    assert len(made.token) == 64
    assert token_at("127.0.0.1", port) == made.token
    assert my_server("localhost", port) == ("127.0.0.1", made.token)
    made.remove()
    assert not file.exists()
    assert token_at("127.0.0.1", port) is None
    assert list(file.parent.iterdir()) == []


def test_no_token_is_generated_if_the_user_gives_one(state, listener):
    assert token_for(listener, "127.0.0.1", "0123456789abcdef") is None
    assert token_for(listener, "0.0.0.0", None) is None
    assert not state.exists()


def test_a_token_is_only_for_the_address_it_was_made_for(state):
    LocalToken().publish("127.0.0.1", 8000)
    assert token_at("127.0.0.1", 8000) is not None
    for host, port in (("127.0.0.2", 8000), ("::1", 8000), ("127.0.0.1", 8001), ("10.0.0.1", 8000), ("a.name", 8000)):
        assert token_at(host, port) is None


def test_a_later_server_at_the_same_address_replaces_the_token_and_keeps_it(state):
    first, second = LocalToken(), LocalToken()
    first.publish("127.0.0.1", 8000)
    second.publish("127.0.0.1", 8000)
    assert token_at("127.0.0.1", 8000) == second.token != first.token
    first.remove()
    assert token_at("127.0.0.1", 8000) == second.token


@pytest.mark.parametrize("mode", [0o640, 0o644, 0o604, 0o660, 0o666, 0o700])
def test_a_file_that_others_may_read_or_write_is_not_used(state, mode):
    made = LocalToken()
    made.publish("127.0.0.1", 8000)
    made.files[0].chmod(mode)
    assert token_at("127.0.0.1", 8000) is None


def test_a_link_in_place_of_a_token_is_not_followed(state):
    made = LocalToken()
    made.publish("127.0.0.1", 8000)
    made.files[0].rename(state / "elsewhere")
    made.files[0].symlink_to(state / "elsewhere")
    assert token_at("127.0.0.1", 8000) is None


@pytest.mark.parametrize("place", ["steppe", "steppe/tokens"])
def test_a_folder_that_is_a_link_is_refused(state, tmp_path, place):
    (tmp_path / "other").mkdir()
    (state / place).parent.mkdir(parents=True)
    (state / place).symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match=r"cannot be written to .*: it is a link or belongs to somebody else; give a"):
        LocalToken().publish("127.0.0.1", 8000)
    assert not [file for file in (tmp_path / "other").rglob("*") if file.is_file()]


def test_a_folder_of_somebody_elses_is_refused(state):
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = state / "steppe" / "tokens"
    folder.mkdir(parents=True)
    os.chown(folder, 4242, 4242)
    with pytest.raises(UserError, match="belongs to somebody else"):
        LocalToken().publish("127.0.0.1", 8000)


def test_a_folder_that_others_may_look_into_is_closed(state):
    folder = state / "steppe" / "tokens"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    LocalToken().publish("127.0.0.1", 8000)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_variable_decides_and_other_values_are_refused(state, listener, monkeypatch):
    monkeypatch.setenv("STEPPE_LOOPBACK_TOKEN", "never")
    assert token_for(listener, "127.0.0.1", None) is None
    monkeypatch.setenv("STEPPE_LOOPBACK_TOKEN", "sometimes")
    with pytest.raises(UserError, match=r'^STEPPE_LOOPBACK_TOKEN is "sometimes"; set it to always or never'):
        token_for(listener, "127.0.0.1", None)


def account(uid: int, shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd(("somebody", "x", uid, uid, "", "/home/somebody", shell))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (account(4242), True),
        (account(4242, "/bin/zsh"), True),
        (account(4242, "/usr/sbin/nologin"), False),
        (account(4242, "/bin/false"), False),
        (account(0), False),
        (account(33), False),
        (account(65534), False),
        (account(os.getuid()), False),
    ],
)
def test_accounts_count_if_somebody_else_can_log_in_to_them(monkeypatch, entry, expected):
    monkeypatch.setattr(local_tokens, "_others_have_processes", lambda mine: False)
    monkeypatch.setattr(pwd, "getpwall", lambda: [entry])
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert others_use_this_machine.__wrapped__() is expected
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert not others_use_this_machine.__wrapped__()


def test_a_process_of_somebody_without_an_account_counts(monkeypatch):
    if os.getuid() != 0:
        pytest.skip("only root can start a process as somebody else")
    monkeypatch.setattr(pwd, "getpwall", list)
    with subprocess.Popen(["sleep", "600"], user=4242) as process:
        try:
            wait_until(lambda: Path(f"/proc/{process.pid}").stat().st_uid == 4242, "it is somebody else's")
            assert others_use_this_machine.__wrapped__()
        finally:
            process.kill()


@pytest.fixture
def shell(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steppe]:
    """Real commands in an empty folder."""
    monkeypatch.delenv("STEPPE_ENV_TOKEN", raising=False)
    (tmp_path / "here").mkdir()
    steppe = Steppe(tmp_path / "here", tmp_path / "outputs")
    yield steppe
    steppe.end()


def remote(command: Command) -> GymnasiumEnvs:
    wait_until(lambda: command.has_ended or "note: " in command.out, "it serves")
    address = command.out.split(" at ")[1].split(";")[0]
    return GymnasiumEnvs(EnvironmentSpec(id="remote", settings={"address": address}), 2)


def test_an_environment_server_admits_only_its_own_user(shell, state, tmp_path, monkeypatch):
    command = shell.launch("env", "serve", "CartPole-v1", "--port", "0")
    remote(command).close()
    (file,) = (state / "steppe" / "tokens").iterdir()
    assert f"others use this machine, so a token was made that only you can read: {file}; learners of" in command.out
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    with pytest.raises(UserError, match="refuses the token: a token is needed and none was given; name its file in"):
        remote(command)
    command.send(signal.SIGTERM)
    assert command.answer().code == 0
    assert not file.exists()
