"""Environments in another process that are reached over the network: the settings of types `remote` and `ue4`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from steppe.errors import SpecError
from steppe.specs._base import Count, NonNegative, Positive, Settings
from steppe.specs.loading.validation import validate

if TYPE_CHECKING:
    from steppe.specs.environment import EnvironmentSpec

UE4_ADDRESS = "127.0.0.1:6025"


def split_address(text: str) -> tuple[str, int]:
    """Parses `"host:port"` or `"[::1]:port"` into (host, port); a ValueError explains the format."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
    is_plain = bool(bare) and (":" not in bare or bare != host)
    if not (colon and is_plain and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError('an address is written "host:port", such as "127.0.0.1:5555" or "[::1]:5555"')
    return bare, int(port)


def written_address(address: object) -> str:
    """An address as text; (host, port), as sockets have it, becomes "host:port"."""
    if isinstance(address, str):
        return address
    if isinstance(address, tuple | list) and len(address) == 2:
        host, port = address
        if isinstance(host, str) and isinstance(port, int) and not isinstance(port, bool):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    raise ValueError('an address is written "host:port" or (host, port), such as ("127.0.0.1", 5555)')


def _checked(text: str) -> str:
    split_address(text)
    return text


def _with_address(data: Any, host: str, port: int | None) -> Any:
    """Joins `host` and `port`, as in older files, into `address`."""
    if not isinstance(data, dict) or not {"host", "port"} & data.keys():
        return data
    if {"address", "addresses"} & data.keys():
        raise ValueError("either an address or host and port are given, not both")
    rest = {name: value for name, value in data.items() if name not in ("host", "port")}
    host, port = data.get("host", host), data.get("port", port)
    return rest | {"address": f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"}


Address = Annotated[str, AfterValidator(_checked)]
Addresses = Annotated[list[Address], Field(min_length=1)]


class RemoteSettings(Settings):
    """Environments that a server steps: `steppe env serve`, or any program that speaks its protocol."""

    address: Address | None = None
    """The server's address, `host:port`; also given as `host` and `port`."""
    addresses: Addresses | None = None
    """Several servers of the same environment, each of which gets its share of the environments."""
    timeout: Positive = 60.0
    """The time limit of a single answer, in seconds."""
    reconnect: NonNegative = 60.0
    """The seconds that a broken connection is tried again before the run fails; 0 tries once."""
    token_file: str | None = None
    """A file with the server's token; by default the variable STEPPE_ENV_TOKEN is used if it is set."""
    tls: bool = False
    """Whether the connection is encrypted, and the server's certificate checked."""
    tls_ca: str | None = None
    """A file with the certificates to trust (PEM) in place of the system's; turns `tls` on."""

    @model_validator(mode="before")
    @classmethod
    def _understand_spellings(cls, data: Any) -> Any:
        return _with_address(data, "127.0.0.1", None)

    @model_validator(mode="after")
    def _has_servers(self) -> RemoteSettings:
        if (self.address is None) == (self.addresses is None):
            raise ValueError('a remote environment needs either "address": "host:port" or a list "addresses"')
        return self

    @property
    def servers(self) -> list[str]:
        """Every server's address."""
        return self.addresses or [str(self.address)]


class Ue4Settings(Settings):
    """A game of Unreal Engine 4 that runs the old learning plug-in."""

    address: Address | None = None
    """The game's address, `host:port`; also given as `host` and `port`. By default 127.0.0.1:6025."""
    addresses: Addresses | None = None
    """The addresses of several games, one for each environment."""
    num_ticks: Count = 4
    """The number of the game's ticks in one timestep."""
    delta_time: Positive = 1 / 60
    """The seconds of the game's time in one tick."""
    controls: Literal["auto", "keys", "axes", "combinations"] = "auto"
    """The controls of the agent: each key on or off, each axis as a number, or one of all combinations of both."""
    observations: list[str] | None = None
    """The names of the observations to use, in the game's words; by default all."""
    timeout: Positive = 60.0
    """The time limit of a single answer, in seconds."""
    max_episode_steps: Count | None = None
    """The number of timesteps after which an episode is truncated."""

    @model_validator(mode="before")
    @classmethod
    def _understand_spellings(cls, data: Any) -> Any:
        data = _with_address(data, *split_address(UE4_ADDRESS))
        if isinstance(data, dict) and isinstance(data.get("discretize_actions"), bool):
            # The old client's word for `controls`; false kept keys and axes separate, as "auto" does if it can.
            rest = {name: value for name, value in data.items() if name != "discretize_actions"}
            return ({"controls": "combinations"} if data["discretize_actions"] else {}) | rest
        return data

    @model_validator(mode="after")
    def _has_one_way_to_say_where(self) -> Ue4Settings:
        if self.address is not None and self.addresses is not None:
            raise ValueError('either "address" or "addresses" is given, not both')
        return self

    @property
    def games(self) -> list[str]:
        """Every game's address."""
        return self.addresses or [self.address or UE4_ADDRESS]


CONNECTIONS: dict[str, type[Settings]] = {"remote": RemoteSettings, "ue4": Ue4Settings}
_WAYS = {"remote": ("auto",), "ue4": ("auto", "sync", "processes")}


def gathered(data: dict[str, Any], own: Collection[str]) -> dict[str, Any]:
    """An environment's data with the fields of its connection moved from beside `type` into `settings`.

    `own` are the fields that every environment has.
    """
    settings = data.get("settings", {})
    beside = {name: value for name, value in data.items() if name not in own}
    if data.get("id") not in tuple(CONNECTIONS) or not beside or not isinstance(settings, dict):
        return data
    return {name: value for name, value in data.items() if name in own} | {"settings": settings | beside}


def check_connection(spec: EnvironmentSpec) -> None:
    """Raises a ValueError if an environment of one of these types is described wrongly."""
    if spec.id not in CONNECTIONS:
        return
    if spec.backend == "compiled":
        raise ValueError(f'an environment of type "{spec.id}" lives in another process and cannot be compiled')
    if spec.id == "remote" and spec.wrappers:
        raise ValueError(
            "wrappers go around an environment where it lives; serve it with them, and leave them out here"
        )
    if spec.vectorization not in _WAYS[spec.id]:
        raise ValueError(
            f'vectorization "{spec.vectorization}" has no meaning for an environment of type "{spec.id}"; leave it out'
        )
    try:
        validate(CONNECTIONS[spec.id], spec.settings)
    except SpecError as error:
        raise ValueError(str(error).removeprefix("wrong settings; ")) from None
