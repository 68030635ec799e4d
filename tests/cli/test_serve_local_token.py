"""`steppe serve` on a machine with other users: only clients of the same user are let in."""

from __future__ import annotations

import json
import re
import shutil
import signal
import stat
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from endpoints import commands_in, save_policy, serve
from processes import Steppe, wait_until

from steppe.serve.clients import EndpointAccess, EndpointAway, connect
from steppe.serve.messages.exchange import Question

pytest.importorskip("uvicorn", reason="the extra serve is not installed")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steppe]:
    """Real commands of a user who shares the machine."""
    monkeypatch.setenv("STEPPE_LOOPBACK_TOKEN", "always")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    (tmp_path / "home").mkdir()
    with commands_in(tmp_path, monkeypatch) as steppe:
        yield steppe


def test_commands_of_the_same_user_are_let_in_and_others_are_not(shell, tmp_path):
    save_policy(shell.folder / "walk")
    served = serve(shell, "walk", "--grpc-port", "0")
    tokens = tmp_path / "home" / ".local" / "state" / "steppe" / "tokens"
    files = [tokens / f"127.0.0.1-{port}" for port in (served.port, served.grpc_port)]
    assert sorted(tokens.iterdir()) == sorted(files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert files[0].read_bytes() == files[1].read_bytes()

    status = shell("serve", "status", "--url", served.url, "--json")
    assert json.loads(status.out)["endpoint"]["name"] == "walk", status.err
    more = ("--environment", "CartPole-v1", "--episodes", "2", "--json")
    assert shell("play", "--url", served.url, *more).code == 0
    assert shell("play", "--url", f"http://localhost:{served.port}", *more).code == 0
    for host in ("127.0.0.1", "localhost"):
        played = shell("play", "--url", f"grpc://{host}:{served.grpc_port}", "--protocol", "v2-grpc", *more)
        assert (played.code, played.err) == (0, "")

    with pytest.raises(urllib.error.HTTPError) as refused:
        served.get("/standing")
    assert refused.value.code == 401
    refused.value.close()
    shell.environment["HOME"] = str(tmp_path / "another")
    for words in (
        ("serve", "status", "--url", served.url),
        ("play", "--url", f"grpc://127.0.0.1:{served.grpc_port}", "--protocol", "v2-grpc", *more),
    ):
        stranger = shell(*words)
        assert stranger.code == 2
        assert re.fullmatch(
            r"error: \S+ refused access \(a token is needed; send it as: Authorization: Bearer TOKEN\); give its "
            r"token by --token-file or STEPPE_SERVE_TOKEN\n",
            stranger.err,
        )

    served.command.send(signal.SIGTERM)
    assert served.command.answer().code == 0
    assert list(tokens.iterdir()) == []


def test_it_says_where_the_token_is_and_how_curl_shows_it(shell):
    save_policy(shell.folder / "walk")
    served = serve(shell, "walk")
    wait_until(lambda: served.command.out.count("\n") == 3, "it has said so")
    note = served.command.out.splitlines()[1]
    assert note.startswith("note: others use this machine, so a token was made that only you can read: ")
    curl = note[note.index("curl ") :]
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    answer = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(answer.stdout)["name"] == "steppe"


def test_a_file_of_another_mode_is_not_used(shell, tmp_path):
    save_policy(shell.folder / "walk")
    served = serve(shell, "walk")
    (file,) = (tmp_path / "home" / ".local" / "state" / "steppe" / "tokens").iterdir()
    file.chmod(0o644)
    answer = shell("serve", "status", "--url", served.url)
    assert (answer.code, "refused access" in answer.err) == (2, True)


@pytest.mark.parametrize("protocol", ["v2", "v2-grpc"])
def test_a_client_goes_on_with_the_token_of_a_restarted_endpoint(shell, protocol):
    save_policy(shell.folder / "walk")
    served = serve(shell, "walk", "--grpc-port", "0")
    port = served.port if protocol == "v2" else served.grpc_port
    client = connect(protocol, EndpointAccess(f"127.0.0.1:{port}"))
    try:
        assert client.describe().model == "walk"
        assert served.command.kill() == -signal.SIGKILL
        again = shell.launch("serve", "walk", "--port", str(served.port), "--grpc-port", str(served.grpc_port))
        wait_until(lambda: "note: " in again.out, "it serves again")
        wait_until(lambda: _answers(client), "it answers")
    finally:
        client.close()


def _answers(client) -> bool:
    try:
        return len(client.answer(Question(np.zeros((1, 4), np.float32))).actions) == 1
    except EndpointAway:
        return False


def test_a_wrong_wish_and_a_folder_that_cannot_be_written_are_one_sentence(shell, tmp_path):
    save_policy(shell.folder / "walk")
    shell.environment["STEPPE_LOOPBACK_TOKEN"] = "yes"
    answer = shell("serve", "walk", "--port", "0")
    sentence = 'error: STEPPE_LOOPBACK_TOKEN is "yes"; set it to always or never, or leave it out\n'
    assert (answer.code, answer.err) == (2, sentence)
    shell.environment |= {"STEPPE_LOOPBACK_TOKEN": "always", "XDG_STATE_HOME": str(tmp_path / "file" / "state")}
    (tmp_path / "file").write_text("")
    answer = shell("serve", "walk", "--port", "0")
    assert answer.code == 2
    assert "a token that keeps them out cannot be written to" in answer.err
    assert answer.err.count("\n") == 1
