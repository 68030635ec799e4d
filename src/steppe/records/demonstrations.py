"""Demonstrations: timesteps of good episodes, in one safetensors file that any program can read or write.

The arrays are [M, ...] in order of time, episode after episode: observations and next_observations of the environment,
actions as it takes them, rewards (float32), terminated and truncated (bool). The header holds the format, its version,
a description (environment, spaces, episodes, mean_return) and one checksum over all of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steppe.errors import StorageError, UserError
from steppe.files import bundles
from steppe.files.durable import storing, write_atomically
from steppe.files.tensors import check_described, parse, serialize_described
from steppe.policies.preprocessing import Preprocessing
from steppe.specs.loading.files import find_project, shown_path
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space, from_json, to_json

FORMAT = "steppe-demonstrations"
VERSION = 1
ARRAYS = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations")


@dataclass(frozen=True)
class Demonstrations:
    """Whole episodes of an environment."""

    environment: str
    observation: Space
    action: Space
    arrays: dict[str, np.ndarray]
    """The ARRAYS by name, each [M, ...]."""
    mean_return: float
    """The mean undiscounted return of the episodes."""

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.arrays["rewards"])

    @property
    def ended(self) -> np.ndarray:
        """Bool [M]: the timesteps that end an episode, or a life if those count."""
        return self.arrays["terminated"] | self.arrays["truncated"]

    def save(self, path: Path | str) -> Path:
        """Writes one file; a reader finds the old content or all of the new."""
        path = Path(path)
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        description = {
            "environment": self.environment,
            "observation": to_json(self.observation),
            "action": to_json(self.action),
            "timesteps": len(self),
            "mean_return": float(self.mean_return),
        }
        text = json.dumps(description, sort_keys=True)
        write_atomically(path, serialize_described(self.arrays, text, FORMAT, VERSION))
        return path

    def fitting(self, observation: Space, action: Space, where: str) -> Demonstrations:
        """Returns itself; raises a UserError if an environment has other spaces."""
        for what, own, wanted in (("observations", self.observation, observation), ("actions", self.action, action)):
            if form(own) != form(wanted):
                raise UserError(
                    f"the demonstrations were recorded in {self.environment} with {what} of {_words(own)}, but {where} "
                    f"has {_words(wanted)}; record others there with: steppe record"
                )
        return self

    def first(self, timesteps: int) -> Demonstrations:
        """At most the first `timesteps`; an episode that does not fit is cut and counts as truncated."""
        if timesteps >= len(self):
            return self
        arrays = {name: array[:timesteps].copy() for name, array in self.arrays.items()}
        arrays["truncated"][-1] = not arrays["terminated"][-1]
        return Demonstrations(self.environment, self.observation, self.action, arrays, self.mean_return)

    def seen_through(self, preprocessing: Preprocessing) -> tuple[np.ndarray, np.ndarray]:
        """(observations, next_observations) after an agent's preprocessing, [M, ...]."""
        shown, following = [], []
        starts = np.concatenate([[True], self.ended[:-1]])
        state = preprocessing.initial((1,))
        for t, begins in enumerate(starts):
            if begins:
                seen, state = preprocessing(self.arrays["observations"][t : t + 1], state, np.ones(1, bool))
            shown.append(seen[0])
            seen, state = preprocessing(self.arrays["next_observations"][t : t + 1], state, np.zeros(1, bool))
            following.append(seen[0])
        return np.stack(shown), np.stack(following)


def find(name: str) -> Path:
    """The file of that name: an absolute path, or one relative to the current folder or else to its project."""
    here = Path.cwd()
    project = find_project(here)
    folders = [here] if project in (None, here) else [here, project]
    for folder in folders:
        path = folder / Path(name).expanduser()
        if path.is_file():
            return path
    where = "" if Path(name).is_absolute() else f" in {' or '.join(map(str, folders))}"
    raise UserError(f'there are no demonstrations "{name}"{where}; record some with: steppe record')


def load_named(name: str) -> Demonstrations:
    """The demonstrations that an experiment names, from the file sent along with it, else from one on this machine."""
    data = bundles.unpack(name)
    return load(find(name)) if data is None else _parsed(data, name)


def load(path: Path | str) -> Demonstrations:
    """The demonstrations in a file; UserError if it holds none, is damaged, or is from a later Steppe."""
    path = Path(path)
    shown = shown_path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {shown}: {(error.strerror or str(error)).lower()}") from error
    return _parsed(data, shown)


def _parsed(data: bytes, shown: str) -> Demonstrations:
    """The demonstrations in the content of a file that messages call `shown`."""
    try:
        metadata, arrays = parse(data)
    except ValueError as error:
        raise UserError(f"{shown} holds no demonstrations, or they are damaged ({error}); record them again") from error
    if metadata.get("format") != FORMAT:
        raise UserError(f"{shown} holds no demonstrations; record some with: steppe record")
    text, _ = check_described(shown, metadata, arrays, VERSION, "record")
    try:
        about = json.loads(text)
        environment, mean_return = str(about["environment"]), float(about["mean_return"])
        spaces = from_json(about["observation"]), from_json(about["action"])
    except Exception as error:
        # A forged description can fail anywhere.
        raise UserError(f"{shown} holds a description that cannot be understood: {error}") from error
    try:
        return Demonstrations(environment, *spaces, arrays, mean_return)
    except UserError as error:
        raise UserError(f"{shown} cannot be used: {error}") from error


def form(space: Space) -> Any:
    """The properties of a space that must agree; bounds may differ in rounding."""
    match space:
        case Box():
            return "box", space.shape, space.dtype == "uint8"
        case Discrete():
            return "discrete", space.n, space.start
        case MultiDiscrete():
            return "multi_discrete", tuple(space.nvec)


def _check(demonstrations: Demonstrations) -> None:
    """Checks everything that learning relies on."""
    arrays, count = demonstrations.arrays, len(demonstrations.arrays.get("rewards", ()))
    if set(arrays) != set(ARRAYS):
        raise UserError(f"demonstrations have the arrays {', '.join(ARRAYS)}, not {', '.join(sorted(arrays))}")
    if count == 0:
        raise UserError("demonstrations need at least one timestep")
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("rewards", "terminated", "truncated"), ())
    shapes |= dict.fromkeys(("observations", "next_observations"), demonstrations.observation.shape)
    shapes["actions"] = demonstrations.action.shape
    for name, shape in shapes.items():
        if arrays[name].shape != (count, *shape):
            raise UserError(
                f'"{name}" of the demonstrations must have shape {(count, *shape)}, not {arrays[name].shape}'
            )
    for name in ("terminated", "truncated"):
        if arrays[name].dtype != bool:
            raise UserError(f'"{name}" of the demonstrations must be true or false, not {arrays[name].dtype}')
    if not demonstrations.ended[-1]:
        raise UserError("the last timestep of the demonstrations ends no episode; mark it as truncated")
    _check_numbers("rewards", arrays["rewards"], Box(()))
    _check_numbers("actions", arrays["actions"], demonstrations.action)
    for name in ("observations", "next_observations"):
        _check_numbers(name, arrays[name], demonstrations.observation)


def _check_numbers(name: str, values: np.ndarray, space: Space) -> None:
    if isinstance(space, Box):
        if space.dtype == "uint8" and values.dtype != np.uint8:
            raise UserError(f'"{name}" of the demonstrations must be bytes (uint8), not {values.dtype}')
        if values.dtype.kind not in "iuf" or (values.dtype.kind == "f" and not np.isfinite(values).all()):
            raise UserError(f'"{name}" of the demonstrations must be finite numbers')
        return
    first = space.start if isinstance(space, Discrete) else 0
    end = first + np.asarray(space.n if isinstance(space, Discrete) else space.nvec)
    if values.dtype.kind not in "iu" or np.any(values < first) or np.any(values >= end):
        raise UserError(f'"{name}" of the demonstrations must be whole numbers in {first} .. {(end - 1).tolist()}')


def _words(space: Space) -> str:
    match space:
        case Box():
            return f"{'bytes' if space.dtype == 'uint8' else 'numbers'} of shape {space.shape}"
        case Discrete():
            return f"{space.n} choices" + (f" from {space.start} on" if space.start else "")
        case MultiDiscrete():
            return f"several choices of {', '.join(map(str, space.nvec))}"
