"""An `AsyncLearner` on loopback, on a machine with other users."""

from __future__ import annotations

import stat
import threading

import pytest
from processes import wait_until
from worlds import World

from steppe.errors import UserError
from steppe.runners.engines.asynchronous import AsyncLearner, AsyncWorker

DQN = {"type": "dqn", "batch_size": 16, "learning_starts": 200, "n_step": 1}


def test_workers_of_the_same_user_are_let_in_and_others_are_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STEPPE_LOOPBACK_TOKEN", "always")
    monkeypatch.delenv("STEPPE_LEARNER_TOKEN", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    tokens = tmp_path / "mine" / "steppe" / "tokens"
    learner = AsyncLearner(
        DQN,
        address="127.0.0.1:0",
        folder=tmp_path / "run",
        network=[{"type": "dense", "size": 16}],
        total_timesteps=600,
    )
    failures: list[Exception] = []
    seen: list[int] = []

    def work() -> None:
        wait_until(lambda: learner.address, "it listens")
        address = "{}:{}".format(*learner.address)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
        try:
            AsyncWorker(address, World, reconnect=60).work()
        except UserError as error:
            failures.append(error)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
        seen.extend(stat.S_IMODE(file.stat().st_mode) for file in tokens.iterdir())
        AsyncWorker(address, World, reconnect=60).work()

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert learner.run().state == "completed"
    finally:
        learner.stop()
        thread.join(120)
    (refusal,) = failures
    assert "refuses the token: a token is needed and none was given; name its file in token_file" in str(refusal)
    assert seen == [0o600]
    assert list(tokens.iterdir()) == []
    assert "note: others use this machine, so a token was made that only you can read: " in capsys.readouterr().err


def test_a_token_of_the_users_own_is_not_joined_by_another(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPPE_LOOPBACK_TOKEN", "yes")
    learner = AsyncLearner(DQN, address="127.0.0.1:0", folder=tmp_path / "run", total_timesteps=600)
    with pytest.raises(UserError, match="set it to always or never"):
        learner.run()
    monkeypatch.setenv("STEPPE_LEARNER_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    learner.stop()
    assert learner.run().state == "stopped"
    assert not (tmp_path / "mine").exists()
