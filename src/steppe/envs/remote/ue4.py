"""Games of Unreal Engine 4 with the old learning plug-in, as gymnasium environments.

The plug-in sends frames: a length of 8 ASCII digits and a MessagePack body, with arrays in the format of msgpack-numpy.
Its Python wrote text and bytes alike, so both are read as bytes here, and texts are decoded.
"""

from __future__ import annotations

import itertools
import math
import re
import socket
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from steppe.errors import EnvironmentAway, UserError, reason_of
from steppe.net.messagepack import Malformed, pack, unpack
from steppe.specs.running.connections import UE4_ADDRESS, Ue4Settings, split_address

DIGITS = 8
MOST_COMBINATIONS = 1024
NUMBERS = {"b", "i", "u", "f"}
"""NumPy's kinds of numbers: booleans, signed and unsigned integers, floats."""
PLAIN = re.compile(r"[<>|=]?(\?|b1|[iu][1248]|f[248])")
"""NumPy's notation for the types of these numbers."""


class GameError(Exception):
    """The game is missing, breaks off, is too slow, or answers with an error or an invalid message."""


def connect(settings: dict[str, Any], number: int) -> UE4:
    """The game for environment `number` of a run; each environment needs its own game."""
    given = Ue4Settings(**settings)
    if number >= len(given.games):
        games = f"{len(given.games)} game{'s' if len(given.games) > 1 else ''}"
        raise UserError(
            f"each environment needs a game of its own, and there is an address for {games} only; name more in "
            f"addresses, or use --num-envs {len(given.games)}"
        )
    return UE4(
        given.games[number], given.num_ticks, given.delta_time, given.controls, given.observations, given.timeout
    )


class UE4(gymnasium.Env):
    """One game. Keys are pressed or released, axes are numbers between their lowest and highest scale.

    Actions here are choices or numbers, so `controls` selects one kind: "keys" (MultiBinary; axes stay at 0), "axes"
    (Box; keys are released) or "combinations" (Discrete: every key up or down, every axis at 0 or at one of its scales;
    number 0 does nothing). "auto" is "keys" or "axes" if the game has only one of them, else "combinations".
    """

    def __init__(
        self,
        address: str = UE4_ADDRESS,
        num_ticks: int = 4,
        delta_time: float = 1 / 60,
        controls: str = "auto",
        observations: list[str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._connection = _Connection(address, timeout)
        self._pace = {"delta_time": float(delta_time), "num_ticks": int(num_ticks)}
        try:
            answer = self._connection.ask({"cmd": "get_spec"})
            self.game = _text(answer.get("game_name", ""))
            self._observed_spaces = _observations(_object(answer, "observation_space_desc"), observations, address)
            self._keys, self._axes = _keys_and_axes(_object(answer, "action_space_desc"), address)
            self.action_space, self.combinations = self._controls(controls, address)
        except BaseException:
            self._connection.close()
            raise
        seen = {name: space for name, (space, _) in self._observed_spaces.items()}
        self.observation_space = next(iter(seen.values())) if len(seen) == 1 else spaces.Dict(seen)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Restarts the level; the game takes seeds of 31 bits."""
        super().reset(seed=seed)
        if seed is not None:
            self._connection.ask({"cmd": "seed", "value": seed % 2**31})
        return self._observed(self._connection.ask({"cmd": "reset"})), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Lets the game run for `num_ticks` ticks."""
        answer = self._connection.ask({"cmd": "step", **self._pace, **self.message_of(action)})
        try:
            reward, ended = float(answer.get("_reward", 0.0)), bool(answer.get("_is_terminal", False))
        except (TypeError, ValueError):
            raise GameError(f"the game sent the reward {answer.get('_reward')!r}") from None
        return self._observed(answer), reward, ended, False, {}

    def set(self, *setters: tuple[str, Any] | tuple[str, Any, bool]) -> Any:
        """Changes the game by setters ("Actor:Property", value, whether to add it); returns the observation."""
        return self._observed(self._connection.ask({"cmd": "set", "setters": [list(setter) for setter in setters]}))

    def message_of(self, action: Any) -> dict[str, Any]:
        """The message for an action: `actions` for the keys, `axes` for the axes."""
        match self.action_space:
            case spaces.MultiBinary():
                pressed, values = np.asarray(action).astype(bool).tolist(), [0.0] * len(self._axes)
            case spaces.Box():
                pressed, values = [False] * len(self._keys), np.asarray(action, float).tolist()
            case _:
                combination = self.combinations[int(action)]
                pressed, values = list(combination[: len(self._keys)]), list(combination[len(self._keys) :])
        return {
            "actions": [[key, bool(is_pressed)] for key, is_pressed in zip(self._keys, pressed, strict=True)],
            # The game multiplies a key's value by its scale, and the agent's value is that of the axis.
            "axes": [[key, float(value) / scale] for (key, scale, _), value in zip(self._axes, values, strict=True)],
        }

    def close(self) -> None:
        """Hangs up; the game continues."""
        self._connection.close()

    def _controls(self, controls: str, address: str) -> tuple[spaces.Space, list[tuple[Any, ...]]]:
        """(the action space, the table of combinations if it has one)."""
        if controls == "auto":
            controls = "combinations" if self._keys and self._axes else "keys" if self._keys else "axes"
        have = {"keys": self._keys, "axes": self._axes, "combinations": [*self._keys, *self._axes]}[controls]
        if not have:
            raise UserError(f'the game at {address} has no {controls} to control; leave out "controls"')
        if controls == "keys":
            return spaces.MultiBinary(len(self._keys)), []
        if controls == "axes":
            low, high = (np.array([pick(scales) for _, _, scales in self._axes], np.float32) for pick in (min, max))
            return spaces.Box(low, high, dtype=np.float32), []
        choices = [(False, True)] * len(self._keys) + [scales for _, _, scales in self._axes]
        count = math.prod(map(len, choices))
        if count > MOST_COMBINATIONS:
            raise UserError(
                f"the game at {address} has {count:,} combinations of keys and axes, too many to choose among; use "
                '"controls": "keys" or "axes"'
            )
        return spaces.Discrete(count), list(itertools.product(*choices))

    def _observed(self, answer: dict[str, Any]) -> Any:
        # Later plug-ins put observations into an object of their own, earlier ones beside the other fields.
        found = answer.get("obs_dict", answer)
        if not isinstance(found, dict):
            raise GameError("the game sent observations that are no object")
        seen = {name: _value(found, name, space, shape) for name, (space, shape) in self._observed_spaces.items()}
        return next(iter(seen.values())) if len(seen) == 1 else seen


Observations = dict[str, tuple[spaces.Box, tuple[int, ...]]]
"""The observations by name: (space, shape in the game's messages)."""


def _observations(description: dict[str, Any], names: list[str] | None, address: str) -> Observations:
    """The observations that a game describes, or the named ones."""
    if names is not None and (unknown := sorted({*names} - description.keys())):
        raise UserError(
            f'the game at {address} has no observation "{unknown[0]}"; it has {", ".join(sorted(description))}'
        )
    observations: Observations = {}
    # Sorted by name, since a policy must find them again after the game has changed.
    for name in sorted(description if names is None else names):
        observation = _observation(_object(description, name))
        if observation is None:
            kind = _text(description[name].get("type", "nothing"))
            raise UserError(
                f'the game at {address} observes {kind} as "{name}", which cannot be learned from; list the others in '
                '"observations"'
            )
        observations[name] = observation
    if not observations:
        raise UserError(f"the game at {address} has nothing to observe; place an observer in it")
    return observations


def _observation(description: dict[str, Any]) -> tuple[spaces.Box, tuple[int, ...]] | None:
    """The space of one observation, or None if it does not consist of numbers."""
    kind = _text(description.get("type", "")).lower()
    if kind == "bool":
        return spaces.Box(0.0, 1.0, (1,), np.float32), ()
    if kind not in ("intbox", "int", "continuous", "float"):
        return None
    shape = _shape(description.get("shape", ()))
    low, high = (description.get(name, description.get(f"{name}_value")) for name in ("min", "max"))
    if kind in ("intbox", "int") and len(shape) in (2, 3) and (low, high) == (0, 255):
        # A grey picture gets a channel axis, which networks for pictures need.
        return spaces.Box(0, 255, shape if len(shape) == 3 else (*shape, 1), np.uint8), shape
    low, high = -np.inf if low is None else float(low), np.inf if high is None else float(high)
    return spaces.Box(low, high, shape or (1,), np.float32), shape


Axis = tuple[str, float, tuple[float, ...]]
"""(a key that moves it, that key's scale, 0 and all its scales)."""


def _keys_and_axes(description: dict[str, Any], address: str) -> tuple[list[str], list[Axis]]:
    """(a key for each action mapping, an `Axis` for each axis mapping), sorted by the mappings' names."""
    keys: list[str] = []
    axes: list[Axis] = []
    for name in sorted(description):
        mapping = _object(description, name)
        bound = mapping.get("keys") or []
        try:
            if _text(mapping.get("type", "")).lower() == "action":
                keys.append(_text(bound[0]) if bound else name)
                continue
            pairs = [(_text(key), float(scale)) for key, scale in bound] or [(name, 1.0), (name, -1.0)]
        except (TypeError, ValueError, IndexError):
            raise GameError(f'the game at {address} describes the keys of "{name}" as {bound!r}') from None
        moving = [(key, scale) for key, scale in pairs if scale]
        if moving:
            axes.append((*moving[0], (0.0, *dict.fromkeys(scale for _, scale in moving))))
    return keys, axes


def _value(found: dict[str, Any], name: str, space: spaces.Box, shape: tuple[int, ...]) -> np.ndarray:
    """One observation in its space's dtype and shape."""
    if name not in found:
        raise GameError(f'the game sent no observation "{name}"')
    try:
        value = np.asarray(found[name])
    except ValueError:
        value = np.empty(0, object)
    if value.dtype.kind not in NUMBERS or value.size != math.prod(shape):
        raise GameError(
            f'the game sent the observation "{name}" as {value.dtype} {list(value.shape)}, unlike {list(shape)} as it '
            "described it"
        )
    return value.astype(space.dtype).reshape(space.shape)


class _Connection:
    """The connection to a game, with one answer to each command."""

    def __init__(self, address: str, timeout: float) -> None:
        self._address, self._timeout = address, timeout
        try:
            self._sock = socket.create_connection(split_address(address), timeout=min(10.0, timeout))
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else reason_of(error)
            raise EnvironmentAway(
                f"cannot reach a game at {address} ({reason}); start it with its learning plug-in and check the address"
            ) from None
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a command and returns its answer, decoded to texts and NumPy arrays."""
        command = message["cmd"]
        deadline = time.monotonic() + self._timeout
        body = pack(message, old=True)
        try:
            self._sock.settimeout(self._timeout)
            self._sock.sendall(b"%08d" % len(body) + body)
            digits = bytes(self._read(DIGITS, deadline))
            if not digits.isdigit():
                raise GameError(f"the game at {self._address} sent {digits!r} where the length of its answer belongs")
            answer = _decoded(unpack(self._read(int(digits), deadline), old=True))
        except TimeoutError:
            raise GameError(
                f'the game at {self._address} did not answer "{command}" within {self._timeout:g} s (it serves one '
                "client at a time; timeout gives it more time)"
            ) from None
        except OSError as error:
            raise GameError(f"the connection to the game at {self._address} broke: {reason_of(error)}") from None
        except Malformed as error:
            raise GameError(f"the game at {self._address} {error}") from None
        status = _text(answer.get("status", "")) if isinstance(answer, dict) else ""
        if status != "ok":
            said = _text(answer.get("message", "")) if isinstance(answer, dict) else ""
            raise GameError(f'the game at {self._address} answers "{command}" with {said or status or "no status"}')
        return answer

    def close(self) -> None:
        self._sock.close()

    def _read(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        filled = 0
        while filled < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
            count = self._sock.recv_into(memoryview(data)[filled:])
            if not count:
                raise ConnectionError("it was closed")
            filled += count
        return data


def _decoded(value: Any) -> Any:
    """MessagePack values with names as text, and msgpack-numpy's arrays and numbers as NumPy's."""
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {_text(name): item for name, item in value.items()}
    if "nd" in named:
        return _array(named)
    return {name: _decoded(item) for name, item in named.items()}


def _array(parts: dict[str, Any]) -> Any:
    """An array or a number; only plain types, since msgpack-numpy would unpickle others."""
    kind, written, data = parts.get("kind", b""), parts.get("type"), parts.get("data")
    if kind not in (b"", "") or not PLAIN.fullmatch(_text(written)) or not isinstance(data, bytes):
        raise Malformed("sent an array of something other than numbers, which is refused")
    dtype = np.dtype(_text(written))
    shape = _shape(parts.get("shape", ())) if parts.get("nd") is True else ()
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise Malformed(f"sent an array of {len(data)} bytes where {dtype} {list(shape)} takes another number")
    array = np.frombuffer(data, dtype).reshape(shape)
    return array if parts.get("nd") is True else array[()]


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(type(n) is int and 0 < n < 2**31 for n in value):
        raise Malformed(f"sent {value!r} where a shape belongs")
    return tuple(value)


def _object(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise GameError(f'the game sent no "{name}"')
    return value


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
