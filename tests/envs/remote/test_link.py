from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from ports import free_port
from servers import Line, array, frame, scripted, serving, stepped

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.envs.remote.environment_server import EnvironmentServer
from steppe.errors import EnvironmentFault, SteppeError, UserError
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box

TOKEN = "a token of many letters"


@pytest.fixture(autouse=True)
def _no_token_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPPE_ENV_TOKEN", raising=False)


def local(id: str, num_envs: int, limit: int | None = None, repeat: int = 1, **settings) -> GymnasiumEnvs:
    return GymnasiumEnvs(EnvironmentSpec(id=id, settings=settings), num_envs, limit, repeat)


def remote(address: str | list[str], num_envs: int, limit: int | None = None, repeat: int = 1, **more) -> GymnasiumEnvs:
    where = {"address": address} if isinstance(address, str) else {"addresses": address}
    return GymnasiumEnvs(
        EnvironmentSpec(id="remote", settings={"reconnect": 2, **where, **more}), num_envs, limit, repeat
    )


def assert_alike(mine: GymnasiumEnvs, theirs: GymnasiumEnvs, seed: int, steps: int) -> int:
    """Asserts that both behave the same for the same actions; returns the number of ended episodes."""
    assert mine.observation_space == theirs.observation_space
    assert mine.action_space == theirs.action_space
    assert mine.max_episode_steps == theirs.max_episode_steps
    np.testing.assert_array_equal(mine.reset(seed), theirs.reset(seed))
    rng, ended = np.random.default_rng(seed), 0
    for _ in range(steps):
        space = mine.action_space
        if isinstance(space, Box):
            actions = rng.normal(0, 2, (mine.num_envs, *space.shape)).astype(np.float32)
        else:
            actions = rng.integers(0, getattr(space, "nvec", getattr(space, "n", None)), (mine.num_envs, *space.shape))
        here, there = mine.step(actions), theirs.step(actions)
        for one, other in zip(here, there, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        ended += int(np.count_nonzero(here.terminated | here.truncated))
    return ended


@pytest.mark.parametrize(
    ("id", "settings"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
        ("FrozenLake-v1", {}),
        ("steppe_toys:Mixed", {}),
        ("steppe_toys:Mixed", {"actions": "multi_binary"}),
        ("steppe_toys:Mixed", {"actions": "box"}),
        ("steppe_toys:Mixed", {"actions": "whole"}),
        ("steppe_toys:Counter", {"start": -2, "length": 4}),
        ("worlds:Pictures", {}),
        ("worlds:Continuous", {}),
        ("worlds:Shifted", {}),
    ],
)
def test_a_served_environment_behaves_exactly_as_a_local_one(id: str, settings: dict) -> None:
    # The mixed one draws at random when it is reset without a seed, so its first episode lasts.
    limit = None if id == "steppe_toys:Mixed" else 7
    with (
        serving(id, **settings) as address,
        local(id, 5, limit, **settings) as here,
        remote(address, 5, limit) as there,
    ):
        ended = assert_alike(here, there, seed=3, steps=120)
    assert ended > 5 or limit is None


def test_a_served_atari_game_separates_rewards_from_scores_and_lives_from_games() -> None:
    pytest.importorskip("ale_py")
    with (
        serving("ALE/Breakout-v5") as address,
        local("ALE/Breakout-v5", 2, 150) as here,
        remote(address, 2, 150) as there,
    ):
        assert assert_alike(here, there, seed=3, steps=320) >= 4


def test_time_limits_and_repeated_actions_are_kept_by_the_server() -> None:
    with (
        serving("steppe_toys:SteppeCounter-v0", length=99) as address,
        local("steppe_toys:SteppeCounter-v0", 2, 3, 4, length=99) as here,
        remote(address, 2, 3, 4) as there,
    ):
        assert there.max_episode_steps == 3
        assert assert_alike(here, there, seed=0, steps=12) == 2 * 4
    with serving("steppe_toys:Counter") as address, remote(address, 1) as there:
        assert there.max_episode_steps is None


def test_environments_are_spread_over_several_servers_in_order() -> None:
    with (
        serving("CartPole-v1") as first,
        serving("CartPole-v1") as second,
        serving("CartPole-v1") as third,
        local("CartPole-v1", 7, 40) as here,
        remote([first, second, third], 7, 40) as there,
    ):
        assert [link.rows for link in there._stepper._links] == [slice(0, 2), slice(2, 4), slice(4, 7)]
        assert assert_alike(here, there, seed=11, steps=200) > 20
        with remote([first, second, third], 2) as fewer:
            assert [link.address for link in fewer._stepper._links] == [first, second]


def test_servers_of_different_environments_are_not_mixed() -> None:
    with serving("CartPole-v1") as first, serving("Pendulum-v1") as second:
        message = (
            f'environment "Pendulum-v1" at {second} has other spaces or time limits than environment "CartPole-v1"'
        )
        with pytest.raises(UserError, match=message):
            remote([first, second], 2)


def test_several_learners_are_served_at_once() -> None:
    with serving("CartPole-v1") as address, local("CartPole-v1", 2, 30) as here, remote(address, 2, 30) as one:
        one.reset(1)
        with remote(address, 3, 30) as other:
            other.reset(2)
            one.step(np.zeros(2, int))
            other.step(np.zeros(3, int))
            assert assert_alike(here, one, seed=5, steps=50) > 2


def test_one_message_each_way_steps_all_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    sends = []
    with serving("CartPole-v1") as address, remote(address, 8) as envs:
        envs.reset(0)
        channel = envs._stepper._links[0]._channel
        send = channel.send
        monkeypatch.setattr(channel, "send", lambda message, timeout: (sends.append(message), send(message, timeout)))
        for _ in range(10):
            envs.step(np.zeros(8, int))
    steps = [message for message in sends if message["op"] == "step"]
    assert len(steps) == 10
    assert steps[0]["actions"]["shape"] == (8,)


def test_first_observations_are_sent_only_for_ended_episodes() -> None:
    """Against a server that follows the documentation by hand."""

    def script(line: Line) -> None:
        line.welcome(3)
        assert line.begin([[0, 0], [0, 1], [0, 2]])["seed"] == 7
        request = line.step([[1, 0], [1, 1], [1, 2]], rewards=[1, 2, 3])
        assert request["actions"] == array([0, 1, 1], "int32")
        line.step(
            [[2, 0], [2, 1], [2, 2]],
            terminated=[False, True, False],
            truncated=array([False, True, True], "bool"),
            observations=array([[9, 1], [9, 2]]),
        )
        assert line.read() == {"op": "close"}
        line.write({"op": "closed"})

    with scripted(script) as address, remote(address, 3) as envs:
        assert envs.max_episode_steps == 9
        np.testing.assert_array_equal(envs.reset(7), [[0, 0], [0, 1], [0, 2]])
        step = envs.step(np.array([0, 1, 1]))
        assert step.observations is step.next_observations
        assert step.rewards.tolist() == [1, 2, 3]
        step = envs.step(np.zeros(3, int))
        np.testing.assert_array_equal(step.next_observations, [[2, 0], [2, 1], [2, 2]])
        np.testing.assert_array_equal(step.observations, [[2, 0], [9, 1], [9, 2]])
        assert step.terminated.tolist() == [False, True, False]
        assert step.truncated.tolist() == [False, False, True]


def test_scores_and_whole_episodes_are_sent_only_if_they_differ() -> None:
    def differs(line: Line) -> None:
        line.welcome(1)
        line.begin([[0, 0]])
        line.step(
            [[1, 0]],
            rewards=[1],
            terminated=[True],
            observations=array([[1, 0]]),
            scores=array([200]),
            finished=array([False], "bool"),
        )
        line.step([[2, 0]])

    def agrees(line: Line) -> None:
        line.welcome(1)
        line.begin([[0, 0]])
        line.step([[1, 1]], rewards=[3], terminated=[True], observations=array([[0, 1]]))
        line.step([[2, 1]], rewards=[4])

    with scripted(differs) as one, scripted(agrees) as other, remote([one, other], 2) as envs:
        envs.reset(0)
        step = envs.step(np.zeros(2, int))
        assert (step.rewards.tolist(), step.scores.tolist()) == ([1, 3], [200, 3])
        assert (step.terminated.tolist(), step.finished.tolist()) == ([True, True], [False, True])
        np.testing.assert_array_equal(step.observations, [[1, 0], [0, 1]])
        step = envs.step(np.zeros(2, int))
        assert step.scores is step.rewards
        assert step.finished.tolist() == [False, False]


def test_actions_are_clipped_before_they_are_sent() -> None:
    def script(line: Line) -> None:
        box = {"type": "box", "shape": [2], "low": [-1, -2], "high": [3], "dtype": "float32"}
        line.welcome(1, action_space=box)
        line.begin([[0, 0]])
        assert line.step([[0, 0]])["actions"] == array([[-1, 3]])

    with scripted(script) as address, remote(address, 1) as envs:
        envs.reset(0)
        envs.step(np.array([[-9.0, 9.0]]))


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raise", r"raised RuntimeError: the engine is on fire"),
        ("nan", r"returned an observation with nan in it"),
        ("reset", r"raised RuntimeError: cannot start again when it was reset"),
    ],
)
def test_an_exception_in_the_server_is_reported_with_its_message(fault: str, sentence: str) -> None:
    with serving("steppe_toys:Counter", fault=fault, length=2) as address, remote(address, 1) as envs:
        envs.reset(0)
        envs.step(np.zeros(1, int))
        expected = (
            rf'the environment server at {address} says: environment "steppe_toys:Counter" \(number 0\) at step 2: '
        )
        with pytest.raises(EnvironmentFault, match=expected + sentence):
            envs.step(np.zeros(1, int))
        envs.close()
        with remote(address, 1) as again:
            again.reset(0)


def test_an_environment_that_cannot_be_made_is_an_error_before_the_server_listens() -> None:
    with (
        pytest.raises(UserError, match=r'unknown environment "CartPoll-v1".*did you mean "CartPole-v1"'),
        serving("CartPoll-v1"),
    ):
        pass
    with pytest.raises(EnvironmentFault, match="could not be made: ZeroDivisionError"), serving("steppe_toys:Broken"):
        pass


def test_a_server_makes_no_more_environments_than_it_allows() -> None:
    with serving("CartPole-v1", max_envs=5) as address:
        with remote(address, 3) as envs:
            with pytest.raises(
                UserError, match=f"server at {address} is full: 3 environments are asked for, 3 of at most 5 are in use"
            ):
                remote(address, 3)
            envs.reset(0)
        for _ in range(20):  # closing gives the places back before it returns
            remote(address, 5).close()


def test_a_token_is_required_if_the_server_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text(TOKEN + "\n")
    bad.write_text(TOKEN[:-1])
    with serving("CartPole-v1", token=TOKEN) as address:
        with remote(address, 1, token_file=str(good)) as envs:
            envs.reset(0)
        monkeypatch.setenv("STEPPE_ENV_TOKEN", TOKEN)
        remote(address, 1).close()
        with pytest.raises(UserError, match=f"at {address} refuses the token: it is not the one this server was given"):
            remote(address, 1, token_file=str(bad))
        monkeypatch.delenv("STEPPE_ENV_TOKEN")
        with pytest.raises(
            UserError, match="refuses the token: a token is needed and none was given; name its file in"
        ):
            remote(address, 1)
    with serving("CartPole-v1") as address:
        remote(address, 1, token_file=str(good)).close()
    (tmp_path / "empty").touch()
    for name, reason in (("none", "no such file"), ("empty", "is empty")):
        with pytest.raises(UserError, match=reason):
            remote("127.0.0.1:1", 1, token_file=str(tmp_path / name))


def test_a_client_without_a_token_learns_nothing_and_cannot_send_much() -> None:
    with serving("CartPole-v1", token=TOKEN) as address:
        host, port = address.split(":")
        for first in (
            frame({"op": "make", "count": 1, "max_timesteps": None, "repeat": 1}),
            frame({"op": "hello", "protocol": "steppe-env", "version": 1, "token": [TOKEN]}),
            frame({"op": "hello", "protocol": "http", "version": 1}),
            b"\x00\x01\x00\x01" + bytes(100),
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            with socket.create_connection((host, int(port)), timeout=30) as sock:
                sock.sendall(first)
                answer = Line(sock).read()
                assert answer["op"] == "error"
                assert answer["kind"] in ("protocol", "token")
                assert TOKEN not in answer["message"]
                assert sock.recv(1) == b""
        with pytest.raises(UserError, match="refuses the token"):
            remote(address, 1)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_that_others_can_reach_needs_a_token(host: str) -> None:
    spec = EnvironmentSpec(id="CartPole-v1")
    with pytest.raises(UserError, match=f"whoever reaches {host} could run this environment; give a token"):
        EnvironmentServer(spec, host, 0)


def test_a_port_in_use_and_an_unknown_host_are_explained() -> None:
    spec = EnvironmentSpec(id="CartPole-v1")
    with (
        serving("CartPole-v1") as address,
        pytest.raises(UserError, match=f"cannot listen at {address}: address already in use; choose another"),
    ):
        EnvironmentServer(spec, "127.0.0.1", int(address.split(":")[1]))
    with pytest.raises(UserError, match=r'there is no host "no-such-host.invalid"'):
        EnvironmentServer(spec, "no-such-host.invalid", 0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


def test_a_connection_can_be_encrypted(certificate: tuple[Path, Path]) -> None:
    from steppe.net.credentials import server_tls

    with (
        serving("worlds:Pictures", tls=server_tls(*certificate), token=TOKEN) as address,
        local("worlds:Pictures", 64) as here,
    ):
        with pytest.raises(UserError, match=f"certificate of the environment server at {address} is not trusted"):
            remote(address, 1, tls=True)
        # It answers with an alert or hangs up, whichever comes first; both errors name the way out.
        with pytest.raises(SteppeError, match=rf"at {address}.*served with TLS.* tls_ca"):
            remote(address, 1)
        with pytest.raises(UserError, match="refuses the token"):
            remote(address, 1, tls_ca=str(certificate[0]))
        token_file = certificate[0].parent / "token"
        token_file.write_text(TOKEN)
        with remote(address, 64, tls_ca=str(certificate[0]), token_file=str(token_file)) as there:
            assert assert_alike(here, there, seed=3, steps=25) == 2 * 64


def test_tls_to_a_server_without_tls_is_explained(certificate: tuple[Path, Path]) -> None:
    with (
        serving("CartPole-v1") as address,
        pytest.raises(UserError, match=f"the environment server at {address} does not speak TLS"),
    ):
        remote(address, 1, tls_ca=str(certificate[0]))
    with pytest.raises(UserError, match=r"cannot read the certificates in nowhere.pem: no such file"):
        remote("127.0.0.1:1", 1, tls_ca="nowhere.pem")


def test_the_error_for_a_missing_server_names_the_command_that_starts_it() -> None:
    port = free_port()
    with pytest.raises(UserError) as caught:
        remote(f"127.0.0.1:{port}", 1)
    assert str(caught.value) == (
        f"cannot reach an environment server at 127.0.0.1:{port} (connection refused); start one there with: steppe "
        f"env serve ENVIRONMENT --port {port}"
    )
    with pytest.raises(UserError, match=r"cannot reach an environment server at no-such-host.invalid:1 \(.*known"):
        remote("no-such-host.invalid:1", 1)


def test_another_version_of_the_protocol_is_named_by_both_sides() -> None:
    expected = r"speaks version 2 of the protocol and this Steppe version 1; install the same version of Steppe on both"

    def newer(line: Line) -> None:
        line.read()
        line.write({"op": "error", "kind": "version", "message": "this server speaks version 2", "version": 2})

    def careless(line: Line) -> None:
        line.read()
        line.write({"op": "welcome", "version": 2, "server": "x", "environment": "y"})

    for script in (newer, careless):
        with scripted(script) as address, pytest.raises(UserError, match=expected):
            remote(address, 1)
    with serving("CartPole-v1") as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as sock:
            sock.sendall(frame({"op": "hello", "protocol": "steppe-env", "version": 2}))
            answer = Line(sock).read()
    assert answer == {
        "op": "error",
        "kind": "version",
        "message": "this server speaks version 1 of the protocol",
        "version": 1,
    }


def test_the_error_for_a_slow_server_names_the_request() -> None:
    done = threading.Event()

    def script(line: Line) -> None:
        line.welcome(1)
        line.begin([[0, 0]])
        line.read()
        done.wait(30)

    with scripted(script) as address, remote(address, 1) as envs:
        envs.reset(0)
        envs._stepper._links[0]._timeout = 0.05
        with pytest.raises(
            EnvironmentFault,
            match=f'environment "Scripted" at {address}: its server did not answer "step" within 0.05 s; .*timeout',
        ):
            envs.step(np.zeros(1, int))
        done.set()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "announced a message of 1,213,486,160 bytes"),
        (frame({"op": "began", "observations": array([[0, 0]])}), 'answered "step" by "began"'),
        (frame(stepped([[0, 0], [0, 0]])), r"sent \"next_observations\" as 'float32' \[2, 2\] where float32 \[1, 2\]"),
        (frame(stepped([[0, 0]], terminated=[True])), 'sent ended episodes without the first "observations"'),
        (frame(stepped([[0, 0]])) * 2, "sent a message before it was its turn"),
        (frame([1, 2]), 'sent a message without an "op"'),
        (frame({"op": "error", "kind": 3, "message": "?"}), 'sent "kind" as 3 where text belongs'),
    ],
)
def test_a_server_that_breaks_the_protocol_is_named(answer: bytes, sentence: str) -> None:
    def script(line: Line) -> None:
        line.welcome(1)
        line.begin([[0, 0]])
        line.read()
        line.sock.sendall(answer)
        line.sock.recv(1)

    with scripted(script) as address, remote(address, 1) as envs:
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match=f'"Scripted" at {address}: its server .*{sentence}'):
            envs.step(np.zeros(1, int))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"rewards": array([np.nan])}, "returned the reward nan"),
        ({"next_observations": array([[np.inf, 0]])}, "returned an observation with inf in it"),
        (
            {"terminated": array([True], "bool"), "observations": array([[np.nan, 0]])},
            "returned an observation with nan in it when it was reset",
        ),
    ],
)
def test_nonfinite_numbers_of_a_server_are_named(more: dict, sentence: str) -> None:
    def script(line: Line) -> None:
        line.welcome(1)
        line.begin([[0, 0]])
        line.step([[0, 0]], **more)

    with scripted(script) as address, remote(address, 1) as envs:
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match=rf'"Scripted" at {address} \(number 0\) at step 1: {sentence}'):
            envs.step(np.zeros(1, int))


def test_a_client_that_breaks_the_protocol_gets_an_error_and_others_are_still_served() -> None:
    with serving("CartPole-v1") as address, remote(address, 1) as envs:
        envs.reset(0)
        host, port = address.split(":")
        hello = frame({"op": "hello", "protocol": "steppe-env", "version": 1})
        make = frame({"op": "make", "count": 1, "max_timesteps": None, "repeat": 1})
        for request, sentence in (
            (frame({"op": "step", "actions": array([0], "int32")}), 'sent "step" when nothing was made yet'),
            (frame({"op": "dance"}), 'sent "dance" when nothing was made yet'),
            (frame({"op": "make", "count": 0, "repeat": 1}), 'sent "count" as 0'),
            (frame({"op": "make", "count": 1, "repeat": True}), 'sent "repeat" as True'),
            ((make, make), 'sent "make" when all was made'),
            ((make, frame({"op": "step", "actions": array([[0]], "int32")})), "sent \"actions\" as 'int32' [1, 1]"),
            ((make, b"\xff\xff\xff\xff"), "announced a message of 4,294,967,295 bytes where at most 16,388 make sense"),
        ):
            with socket.create_connection((host, int(port)), timeout=30) as sock:
                line = Line(sock)
                sock.sendall(hello)
                assert line.read()["op"] == "welcome"
                *before, last = request if isinstance(request, tuple) else (request,)
                for each in before:
                    sock.sendall(each)
                    assert line.read()["op"] == "made"
                sock.sendall(last)
                answer = line.read()
                assert (answer["op"], answer["kind"]) == ("error", "protocol")
                assert sentence in answer["message"]
        envs.step(np.zeros(1, int))


def test_a_server_that_ends_finishes_the_current_step() -> None:
    spec = EnvironmentSpec(id="CartPole-v1")
    server = EnvironmentServer(spec, "127.0.0.1", free_port())
    thread = threading.Thread(target=server.serve)
    thread.start()
    envs = remote(f"127.0.0.1:{server.address[1]}", 2, reconnect=0)
    envs.reset(0)
    envs.step(np.zeros(2, int))
    server.stop()
    thread.join(30)
    server.stop()
    assert not thread.is_alive()
    with pytest.raises(EnvironmentFault, match=r"could not be made again within 0 s \(connection refused\)"):
        envs.step(np.zeros(2, int))


def test_no_video_is_made_of_a_remote_environment() -> None:
    from steppe.envs.episode_recording import record_episode

    spec = EnvironmentSpec(id="remote", settings={"address": "127.0.0.1:1"})
    assert "sends no pictures" in record_episode(spec, lambda observation: 0).reason


def test_ssl_contexts_come_only_from_files_that_fit(certificate: tuple[Path, Path]) -> None:
    from steppe.net.credentials import server_tls

    cert, key = certificate
    assert isinstance(server_tls(cert, key), ssl.SSLContext)
    assert server_tls(None, None) is None
    with pytest.raises(UserError, match="TLS needs both the certificate and its key"):
        server_tls(cert, None)
    with pytest.raises(UserError, match="cannot use the certificate"):
        server_tls(key, cert)
