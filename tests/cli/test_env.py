from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import Command, Steppe, wait_until

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.specs.environment import EnvironmentSpec

WORLD = """
import gymnasium, numpy as np

class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, height=0.0, names=()):
        self.height, self.names = height, names

    def reset(self, *, seed=None, options=None):
        return np.array([self.height, len(self.names)], np.float32), {}

    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steppe]:
    """Real commands in an empty folder."""
    monkeypatch.delenv("STEPPE_ENV_TOKEN", raising=False)
    folder = tmp_path / "here"
    folder.mkdir()
    steppe = Steppe(folder, tmp_path / "outputs")
    yield steppe
    steppe.end()


def address_of(command: Command) -> str:
    def found() -> str | None:
        assert not command.has_ended, command.answer()
        match = re.search(r" at (\S+); train with: ", command.out)
        return match[1] if match else None

    return wait_until(found, "it serves")


def remote(address: str, **settings) -> GymnasiumEnvs:
    return GymnasiumEnvs(EnvironmentSpec(id="remote", settings={"address": address, **settings}), 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_environment_is_served_until_a_signal_comes(shell: Steppe, number: signal.Signals) -> None:
    command = shell.launch("env", "serve", "CartPole-v1", "--port", "0")
    address = address_of(command)
    with remote(address, reconnect=0) as envs:
        assert envs.reset(0).shape == (2, 4)
        envs.step(np.zeros(2, int))
        command.send(number)
        answer = command.answer()
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == (
        f"serving CartPole-v1 at {address}; train with: steppe train remote --set environment.address={address}\n"
    )


def test_an_experiment_trains_in_what_is_served(shell: Steppe) -> None:
    (shell.folder / "world.py").write_text(WORLD)
    command = shell.launch("env", "serve", "world:World", "--port", "0", "--set", "height=0.5", "--set", 'names=["a"]')
    address = address_of(command)
    with remote(address) as envs:
        np.testing.assert_array_equal(envs.reset(0), [[0.5, 1]] * 2)
    (shell.folder / "first.json").write_text(
        json.dumps(
            {
                "environment": {"type": "remote", "address": address, "timeout": 30},
                "agent": {"type": "ppo", "horizon": 16, "minibatches": 2, "epochs": 2},
                "total_timesteps": 256,
                "max_timesteps_per_episode": 10,
                "num_envs": 4,
                "evaluation": {"every": 128, "episodes": 2},
            }
        )
    )
    answer = shell("train", "-f", "first.json")
    assert answer.code == 0, answer.err
    assert "sends no pictures" in answer.out
    (folder,) = (shell.folder / "steppe-runs").iterdir()
    assert json.loads((folder / "status.json").read_text())["mean_return"] == 10
    assert json.loads((folder / "experiment.json").read_text())["environment"]["settings"]["address"] == address


def test_others_need_a_token_and_are_told_how_to_train(shell: Steppe) -> None:
    answer = shell("env", "serve", "CartPole-v1", "--host", "0.0.0.0", "--port", "0")
    assert answer.code == 2
    assert answer.err == (
        "error: whoever reaches 0.0.0.0 could run this environment; give a token by --token-file or STEPPE_ENV_TOKEN, "
        "or serve at --host 127.0.0.1\n"
    )
    token = "0123456789abcdef-secret"
    (shell.folder / "token").write_text(token)
    command = shell.launch("env", "serve", "CartPole-v1", "--host", "0.0.0.0", "--port", "0", "--token-file", "token")
    address_of(command)
    port = re.search(r"0\.0\.0\.0:(\d+)", command.out)[1]
    with remote(f"127.0.0.1:{port}", token_file=str(shell.folder / "token")) as envs:
        envs.reset(0)
    command.send(signal.SIGTERM)
    answer = command.answer()
    assert answer.code == 0
    assert "--set environment.token_file=token\n" in answer.out
    assert "note: nothing is encrypted" in answer.out
    assert token not in answer.out + answer.err


def test_a_token_and_certificates_make_it_ready_for_a_network(shell: Steppe) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(words, check=True, capture_output=True, cwd=shell.folder)
    shell.environment["STEPPE_ENV_TOKEN"] = "0123456789abcdef"
    files = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    command = shell.launch("env", "serve", "CartPole-v1", "--host", "localhost", "--port", "0", *files)
    port = address_of(command).rpartition(":")[2]
    answer = shell(
        *("train", "remote", "-t", "64", "--num-envs", "2", "--set", f"environment.address=localhost:{port}"),
        *("--set", "environment.tls_ca=cert.pem", "--set", "agent.horizon=16", "--set", "agent.minibatches=2", "-q"),
    )
    assert (answer.code, answer.err) == (0, "")
    run = next((shell.folder / "steppe-runs").iterdir())
    assert not any(b"0123456789abcdef" in path.read_bytes() for path in run.rglob("*") if path.is_file())


def test_worker_processes_keep_an_environment_that_exits_from_ending_the_server(shell: Steppe) -> None:
    (shell.folder / "world.py").write_text(WORLD.replace("return self.reset()[0], 1.0", "__import__('os')._exit(7); 1"))
    command = shell.launch("env", "serve", "world:World", "--port", "0", "--vectorization", "processes")
    address = address_of(command)
    with remote(address) as envs:
        envs.reset(0)
        with pytest.raises(Exception, match=r"its worker process [0-9]+ ended with code 7"):
            envs.step(np.zeros(2, int))
    with remote(address) as envs:
        envs.reset(0)
    command.send(signal.SIGTERM)
    assert command.answer().code == 0


def test_environments_are_found_in_files_too(shell: Steppe) -> None:
    (shell.folder / "pole.json").write_text('{"id": "CartPole-v1", "settings": {"max_episode_steps": 7}}')
    command = shell.launch("env", "serve", "pole.json", "--port", "0", "--set", "sutton_barto_reward=true")
    with remote(address_of(command)) as envs:
        assert envs.max_episode_steps == 7
    command.send(signal.SIGTERM)
    assert command.answer().code == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("CartPoll-v1",), 'unknown environment "CartPoll-v1"'),
        (("nowhere:World",), 'names the module "nowhere", which is not there'),
        (("CartPole-v1", "--set", "gravity=3"), "does not accept its settings"),
        (("CartPole-v1", "--set", "gravity"), 'cannot understand --set "gravity"'),
        (("CartPole-v1", "--host", "no-such-host.invalid"), 'there is no host "no-such-host.invalid"'),
        (("CartPole-v1", "--token-file", "nowhere"), "cannot read the token in nowhere: no such file or directory"),
        (("CartPole-v1", "--tls-cert", "cert.pem"), "TLS needs both the certificate and its key"),
        (("CartPole-v1", "--vectorization", "threads"), 'unknown value "threads"'),
        (("CartPole-v1", "--max-envs", "0"), "--max-envs"),
        (("remote",), 'needs either "address"'),
    ],
)
def test_a_mistake_is_one_sentence(
    steppe: Callable, monkeypatch: pytest.MonkeyPatch, words: tuple, sentence: str
) -> None:
    monkeypatch.delenv("STEPPE_ENV_TOKEN", raising=False)
    answer = steppe("env", "serve", *words, "--port", "0")
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert sentence in answer.err


def test_a_short_token_is_refused(steppe: Callable, here: Path) -> None:
    (here / "token").write_text("secret")
    answer = steppe("env", "serve", "CartPole-v1", "--port", "0", "--token-file", "token")
    assert answer.code == 2
    assert "the token in token has only 6 characters; use at least 16" in answer.err
    assert "secret" not in answer.err
    assert not os.environ.get("STEPPE_ENV_TOKEN")


@pytest.mark.parametrize("port", ["-1", "65536", "99999"])
def test_a_port_that_does_not_exist_is_refused(steppe: Callable, port: str) -> None:
    answer = steppe("env", "serve", "CartPole-v1", "--port", port)
    assert answer.code == 2
    assert "--port" in answer.err
    assert "; it must be at " in answer.err.replace(": it", "; it")
