"""The client of the old Unreal Engine plug-in, against a stand-in that speaks its protocol over TCP."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import hypothesis.extra.numpy as arrays
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ports import free_port

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.envs.remote.ue4 import UE4, GameError, _decoded
from steppe.errors import EnvironmentFault, UserError
from steppe.net.messagepack import Malformed
from steppe.specs.environment import EnvironmentSpec

OBSERVATIONS = {
    "Player/Location": {"type": "Continuous", "shape": (3,)},
    "Player/Alive": {"type": "Bool"},
    "Camera/camera": {"type": "IntBox", "shape": (4, 5), "min": 0, "max": 255},
    "Player/Lives": {"type": "IntBox", "shape": (1,), "min": 0, "max": 3},
}
ACTIONS = {
    "MoveRight": {"type": "axis", "keys": [("Right", 2.0), ("Left", -1.0), ("D", 2.0)]},
    "Fire": {"type": "action", "keys": ["SpaceBar", "Enter"]},
    "Duck": {"type": "action", "keys": ["C"]},
}


def encoded(value: Any) -> Any:
    """An array in the format of msgpack-numpy."""
    if isinstance(value, np.ndarray):
        name, data = value.dtype.str, value.tobytes()
        return {b"nd": True, b"type": name, b"kind": b"", b"shape": value.shape, b"data": data}
    assert isinstance(value, np.generic)
    return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}


class Game:
    """Counts its ticks, moves along its axis, ends after `length` steps, and keeps every command."""

    def __init__(self, old: bool = True, nested: bool = True, length: int = 5, **changed: Any) -> None:
        self.old, self.nested, self.length = old, nested, length
        self.observations = changed.get("observations", OBSERVATIONS)
        self.actions = changed.get("actions", ACTIONS)
        self.heard: list[dict[str, Any]] = []
        self.steps = self.seed = 0
        self.place = 0.0
        self.intrude: Callable[[socket.socket, dict[str, Any]], bool] = lambda sock, message: False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock:
                while digits := self._exactly(sock, 8):
                    message = msgpack.unpackb(self._exactly(sock, int(digits)))
                    self.heard.append(message)
                    if self.intrude(sock, message):
                        break
                    body = msgpack.packb(self.answer(message), use_bin_type=not self.old, default=encoded)
                    sock.sendall(f"{len(body):08d}".encode() + body)

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        match message["cmd"]:
            case "get_spec":
                descriptions = {"observation_space_desc": self.observations, "action_space_desc": self.actions}
                return {"status": "ok", "game_name": "Stand-in", **descriptions}
            case "seed":
                self.seed = message["value"]
                return {"status": "ok", "new_seed": self.seed}
            case "reset":
                self.steps, self.place = 0, 0.0
                return self._seen(0.0)
            case "step":
                self.steps += 1
                scales = {"Right": 2.0, "Left": -1.0}
                self.place += sum(value * scales[key] for key, value in message["axes"])
                return self._seen(float(sum(pressed for _, pressed in message["actions"])))
            case "set":
                for _, value, *relative in message["setters"]:
                    self.place = value + (self.place if relative == [True] else 0.0)
                return self._seen(0.0)
        return {"status": "error", "message": f"Unknown method ({message['cmd']}) to call!"}

    def _seen(self, reward: float) -> dict[str, Any]:
        seen = {
            "Player/Location": (self.place, float(self.steps), float(self.seed)),
            "Player/Alive": self.steps < self.length,
            "Camera/camera": np.full((4, 5), self.steps, np.uint8),
            "Player/Lives": np.int64(3),
            "Player/Name": "Bob",
        }
        ended = {"_reward": reward, "_is_terminal": self.steps >= self.length}
        return {"status": "ok", **ended, **({"obs_dict": seen} if self.nested else seen)}

    @staticmethod
    def _exactly(sock: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size and (part := sock.recv(size - len(data))):
            data += part
        return data


@pytest.fixture
def start() -> Iterator[Callable[..., Game]]:
    games: list[Game] = []

    def game(**settings: Any) -> Game:
        games.append(Game(**settings))
        return games[-1]

    yield game
    for each in games:
        each.close()


@pytest.mark.parametrize("old", [True, False], ids=["text as bytes", "text as text"])
@pytest.mark.parametrize("nested", [True, False], ids=["obs_dict", "beside"])
def test_a_game_is_played(start: Callable[..., Game], old: bool, nested: bool) -> None:
    game = start(old=old, nested=nested)
    env = UE4(game.address, num_ticks=3, delta_time=0.5, controls="axes")
    assert env.game == "Stand-in"
    obs, _ = env.reset(seed=7)
    assert env.observation_space.contains(obs)
    np.testing.assert_array_equal(obs["Player/Location"], np.array([0, 0, 7], np.float32))
    np.testing.assert_array_equal(obs["Player/Alive"], [1.0])
    np.testing.assert_array_equal(obs["Player/Lives"], [3.0])
    for t in range(1, 6):
        obs, reward, terminated, truncated, _ = env.step(np.array([-0.75], np.float32))
        assert env.observation_space.contains(obs)
        assert obs["Player/Location"][0] == -0.75 * t
        np.testing.assert_array_equal(obs["Camera/camera"], np.full((4, 5, 1), t, np.uint8))
        assert (reward, terminated, truncated) == (0.0, t == 5, False)
    assert [message["cmd"] for message in game.heard] == ["get_spec", "seed", "reset", *["step"] * 5]
    assert game.heard[1] == {"cmd": "seed", "value": 7}
    assert game.heard[-1] == {
        "cmd": "step",
        "delta_time": 0.5,
        "num_ticks": 3,
        # One key stands for each mapping, in the order of their names; its value times its scale is the axis's.
        "actions": [["C", False], ["SpaceBar", False]],
        "axes": [["Right", -0.375]],
    }
    env.reset()
    assert [message["cmd"] for message in game.heard[-1:]] == ["reset"]
    env.close()


def test_spaces_follow_from_what_the_game_describes(start: Callable[..., Game]) -> None:
    env = UE4(start().address)
    assert env.observation_space == gymnasium.spaces.Dict(
        {
            "Camera/camera": gymnasium.spaces.Box(0, 255, (4, 5, 1), np.uint8),
            "Player/Alive": gymnasium.spaces.Box(0, 1, (1,), np.float32),
            "Player/Lives": gymnasium.spaces.Box(0, 3, (1,), np.float32),
            "Player/Location": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        }
    )
    # Two keys up or down, one axis at 0, 2 or -1.
    assert env.action_space == gymnasium.spaces.Discrete(12)
    assert env.message_of(0) == {"actions": [["C", False], ["SpaceBar", False]], "axes": [["Right", 0.0]]}
    assert len({str(env.message_of(i)) for i in range(12)}) == 12
    assert {env.message_of(i)["axes"][0][1] for i in range(12)} == {0.0, 1.0, -0.5}
    env.close()


def test_controls_can_be_keys_or_axes_alone(start: Callable[..., Game]) -> None:
    keys = UE4(start().address, controls="keys")
    assert keys.action_space == gymnasium.spaces.MultiBinary(2)
    assert keys.message_of([1, 0]) == {"actions": [["C", True], ["SpaceBar", False]], "axes": [["Right", 0.0]]}
    axes = UE4(start().address, controls="axes")
    assert axes.action_space == gymnasium.spaces.Box(-1.0, 2.0, (1,), np.float32)
    only_keys = UE4(start(actions={"Fire": ACTIONS["Fire"]}).address)
    assert only_keys.action_space == gymnasium.spaces.MultiBinary(1)
    only_axes = UE4(start(actions={"MoveRight": ACTIONS["MoveRight"]}).address)
    assert only_axes.action_space == axes.action_space
    for env in (keys, axes, only_keys, only_axes):
        env.close()
    with pytest.raises(UserError, match='has no axes to control; leave out "controls"'):
        UE4(start(actions={"Fire": ACTIONS["Fire"]}).address, controls="axes")
    many = {f"Key{i}": {"type": "action", "keys": [f"K{i}"]} for i in range(11)}
    with pytest.raises(UserError, match=r'has 2,048 combinations of keys and axes, too many.*"controls": "keys"'):
        UE4(start(actions=many).address, controls="combinations")


def test_a_single_observation_stands_alone_and_others_can_be_left_out(start: Callable[..., Game]) -> None:
    named = OBSERVATIONS | {"Player/Name": {"type": "str"}}
    env = UE4(start(observations=named).address, observations=["Camera/camera"])
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (4, 5, 1), np.uint8)
    obs, _ = env.reset()
    assert obs.shape == (4, 5, 1)
    env.close()
    with pytest.raises(UserError, match='observes str as "Player/Name", which cannot be learned from; list the others'):
        UE4(start(observations=named).address)
    with pytest.raises(UserError, match='has no observation "Camera"; it has Camera/camera, Player/Alive'):
        UE4(start().address, observations=["Camera"])
    with pytest.raises(UserError, match="has nothing to observe"):
        UE4(start(observations={}).address)


def test_properties_of_the_game_can_be_set(start: Callable[..., Game]) -> None:
    game = start()
    env = UE4(game.address, observations=["Player/Location"])
    env.reset(seed=0)
    np.testing.assert_array_equal(env.set(("Player:X", 5.0)), [5, 0, 0])
    np.testing.assert_array_equal(env.set(("Player:X", 2.0, True)), [7, 0, 0])
    assert game.heard[-1] == {"cmd": "set", "setters": [["Player:X", 2.0, True]]}
    env.close()


def test_training_in_a_game_selects_it_by_type(start: Callable[..., Game]) -> None:
    games = [start(length=3), start(length=9)]
    settings = {"addresses": [game.address for game in games], "observations": ["Player/Location"], "controls": "keys"}
    with GymnasiumEnvs(EnvironmentSpec(id="ue4", settings={**settings, "max_episode_steps": 5}), 2) as envs:
        assert envs.max_episode_steps == 5
        np.testing.assert_array_equal(envs.reset(10), [[0, 0, 10], [0, 0, 11]])
        for t in range(1, 6):
            step = envs.step(np.array([[1, 1], [0, 1]]))
            np.testing.assert_array_equal(step.next_observations[1], [0, t, 11])
            assert step.rewards.tolist() == [2, 1]
            assert step.terminated.tolist() == [t == 3, False]
            assert step.truncated.tolist() == [False, t == 5]
    spec = EnvironmentSpec.model_validate({"type": "ue4", "host": "127.0.0.1", "port": int(games[0].address[10:])})
    with GymnasiumEnvs(spec, 1) as envs:
        envs.reset(0)
        assert envs.action_space.n == 12
    with pytest.raises(
        UserError, match="there is an address for 1 game only; name more in addresses, or use --num-envs 1"
    ):
        GymnasiumEnvs(spec, 2)


def test_a_game_that_is_not_there_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(UserError, match=rf"cannot reach a game at {address} \(connection refused\); start it"):
        UE4(address)


def _say(sent: bytes) -> Callable[[socket.socket, dict[str, Any]], bool]:
    def intrude(sock: socket.socket, message: dict[str, Any]) -> bool:
        if message["cmd"] == "step":
            sock.sendall(sent)
        return message["cmd"] == "step"

    return intrude


def _frame(value: Any) -> bytes:
    body = msgpack.packb(value, default=encoded)
    return f"{len(body):08d}".encode() + body


SEEN = {"Player/Location": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"", "the connection to the game at .* broke: it was closed"),
        (b"0000", "the connection to the game at .* broke: it was closed"),
        (b"00000100abc", "the connection to the game at .* broke: it was closed"),
        (b"HTTP/1.1", "sent b'HTTP/1.1' where the length of its answer belongs"),
        (b"00000001\xc1", "sent something that is not MessagePack"),
        (_frame([1]), 'answers "step" with no status'),
        (_frame({"status": "error", "message": "No playing world!"}), 'answers "step" with No playing world!'),
        (_frame({"status": "ok", "obs_dict": {}}), 'sent no observation "Player/Location"'),
        (_frame({"status": "ok", "obs_dict": [1]}), "sent observations that are no object"),
        (_frame({"status": "ok", "Player/Location": "here"}), 'sent the observation "Player/Location" as'),
        (_frame({"status": "ok", "Player/Location": [[1.0], [1.0, 2.0]]}), 'sent the observation "Player/Location" as'),
        (_frame({"status": "ok", "Player/Location": np.zeros(2)}), r"as float64 \[2\], unlike \[3\]"),
        (_frame({"status": "ok", "_reward": "much", **SEEN}), "sent the reward"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_game_that_breaks_the_protocol_is_named(start: Callable[..., Game], sent: bytes, sentence: str) -> None:
    game = start()
    game.intrude = _say(sent)
    spec = EnvironmentSpec(id="ue4", settings={"address": game.address, "observations": ["Player/Location"]})
    with GymnasiumEnvs(spec, 1) as envs:
        envs.reset(0)
        with pytest.raises(EnvironmentFault, match=rf'"ue4" \(number 0\) at step 1: raised GameError: .*{sentence}'):
            envs.step(np.zeros(1, int))


def test_a_silent_game_times_out(start: Callable[..., Game]) -> None:
    game, done = start(), threading.Event()
    game.intrude = lambda sock, message: message["cmd"] == "reset" and done.wait(30)
    env = UE4(game.address, timeout=30)
    env._connection._timeout = 0.05
    with pytest.raises(GameError, match=f'game at {game.address} did not answer "reset" within 0.05 s'):
        env.reset()
    done.set()
    env.close()


@given(
    st.sampled_from(["?", "u1", "i2", "<i4", ">i8", "<f4", ">f8", "f2"]).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_side=4))
    ),
    st.booleans(),
)
def test_arrays_come_back_as_msgpack_numpy_wrote_them(values: np.ndarray, old: bool) -> None:
    body = msgpack.packb({"a": values}, default=encoded, use_bin_type=not old)
    found = _decoded(msgpack.unpackb(body, raw=True, strict_map_key=False))["a"]
    assert found.dtype == values.dtype
    assert found.tobytes() == values.tobytes()
    assert found.shape == values.shape


@pytest.mark.parametrize(
    "written",
    [
        b"\x83\xa1a\x85\xc4\x02nd\xc3\xc4\x04type\xa3|u1\xc4\x04kind\xc4\x00\xc4\x05shape\x92\x02\x02\xc4\x04data\xc4\x04"
        b"\x01\x02\x03\x04\xa1b\x83\xc4\x02nd\xc2\xc4\x04type\xa3<f4\xc4\x04data\xc4\x04\x00\x00\xc0?\xa1c\x85\xc4\x02nd"
        b"\xc3\xc4\x04type\xa3|b1\xc4\x04kind\xc4\x00\xc4\x05shape\x91\x01\xc4\x04data\xc4\x01\x01",
        b"\x83\xa1a\x85\xa2nd\xc3\xa4type\xa3|u1\xa4kind\xa0\xa5shape\x92\x02\x02\xa4data\xa4\x01\x02\x03\x04\xa1b\x83\xa2"
        b"nd\xc2\xa4type\xa3<f4\xa4data\xa4\x00\x00\xc0?\xa1c\x85\xa2nd\xc3\xa4type\xa3|b1\xa4kind\xa0\xa5shape\x91\x01"
        b"\xa4data\xa1\x01",
    ],
    ids=["with bytes apart from text", "as before 2013"],
)
def test_recorded_messages_of_msgpack_numpy_are_decoded(written: bytes) -> None:
    """The bytes are msgpack-numpy 0.4.8's."""
    found = _decoded(msgpack.unpackb(written, raw=True, strict_map_key=False))
    np.testing.assert_array_equal(found["a"], np.array([[1, 2], [3, 4]], np.uint8))
    assert (found["b"], found["b"].dtype) == (1.5, np.float32)
    np.testing.assert_array_equal(found["c"], [True])


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


@pytest.mark.parametrize(
    "parts",
    [
        {b"kind": b"O", b"type": [["", "|O"]], b"data": pickle.dumps(Bomb())},
        {b"kind": b"O", b"type": "|O", b"data": pickle.dumps(Bomb())},
        {b"kind": b"", b"type": "|O", b"data": bytes(8)},
        {b"kind": b"V", b"type": [["x", "<f4"]], b"data": bytes(4)},
        {b"kind": b"", b"type": "f4,f4", b"data": bytes(8)},
        {b"kind": b"", b"type": "<U1", b"data": bytes(4)},
        {b"kind": b"", b"type": "<M8[s]", b"data": bytes(8)},
        {b"kind": b"", b"type": "<f4", b"data": bytes(3)},
        {b"kind": b"", b"type": "<f4", b"data": bytes(8)},
        {b"kind": b"", b"type": "<f4", b"data": [1]},
        {b"kind": b"", b"type": "<f4", b"data": bytes(4), b"shape": [-1]},
        {b"kind": b"", b"type": "<f4", b"data": bytes(4), b"shape": [2**40, 2**40]},
        {b"type": None, b"data": bytes(4)},
    ],
)
def test_nothing_but_plain_numbers_is_unpacked(parts: dict[bytes, Any]) -> None:
    value = {b"nd": True, b"shape": [1], **parts}
    with pytest.raises(Malformed):
        _decoded(msgpack.unpackb(msgpack.packb({"a": value}), raw=True, strict_map_key=False))
