"""A policy: everything needed to turn an observation into an action, loadable without JAX."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from steppe.errors import ModuleNotAllowed, UserError
from steppe.policies import heads, policy_folder
from steppe.policies.description import PolicyDescription, tensor_shapes
from steppe.policies.forward import Forward, Layers, State
from steppe.policies.layers import plan
from steppe.policies.preprocessing import EPISODE_BEGUN, STATE_PREFIX
from steppe.specs.allowed_modules import AllowedModules
from steppe.specs.loading.files import shown_path
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Space


class Policy:
    """Acts with NumPy alone; may be shared by threads.

    A recurrent policy has a state. `act` keeps it inside, for one episode (or one batch of episodes) at a time, and
    `reset` begins the next; threads share such a policy through `advance`, which takes and returns the state.

    Tensors: torso/<layer>/{kernel, bias, scale, embedding, ...}; head/{kernel, bias}, and head/log_std [A] for a
    gaussian; for a dueling head head/value/{kernel, bias} and head/advantage/{kernel, bias}; normalizer/{mean, var} in
    the observation's shape; constant/action as the environment takes it.
    """

    def __init__(self, description: PolicyDescription, tensors: Mapping[str, Any]) -> None:
        self.description = description
        self._rng = np.random.default_rng()
        self._dtype = _input_dtype(description.shown)
        self._shapes = tensor_shapes(description)
        network = None if self.kind in ("random", "constant") else description.network
        self._forward = None if network is None else Forward(plan(network, description.observation))
        self._weights = self._prepare(tensors)
        self._state: State | None = None

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The policy's own copies."""
        return self._weights.tensors

    @property
    def kind(self) -> str:
        """The head's kind: see `steppe.policies.heads`."""
        return self.description.head["kind"]

    @property
    def is_recurrent(self) -> bool:
        """Whether an action depends on earlier observations of the same episode."""
        preprocessing = self.description.preprocessing
        is_stateful = preprocessing is not None and preprocessing.is_stateful
        return is_stateful or (self._forward is not None and bool(self._forward.plan.states))

    def act(self, observation: Any, deterministic: bool = True, rng: np.random.Generator | None = None) -> Any:
        """The action for one observation, or those for a batch [B, ...]; a Discrete action is a plain int.

        A recurrent policy takes the observations of an episode in order; call `reset` before the next episode.
        `deterministic` takes the best action instead of sampling one. A random policy has none, so it always samples.
        """
        observations, is_batch = self._coerce(observation)
        self._check_finite(observations)
        actions, _, state = self._act(observations, self._kept_state(len(observations)), deterministic, rng)
        if self.is_recurrent:
            self._state = state
        if is_batch:
            return actions
        return int(actions[0]) if isinstance(self.description.action, Discrete) else actions[0]

    def reset(self, ended: Any = None) -> None:
        """Begins a new episode: clears the state that `act` keeps, in all rows or in those with `ended` [B]."""
        if ended is None or self._state is None:
            self._state = None
            return
        kept = ~np.asarray(ended, bool)
        self._state = {name: each * kept.reshape(-1, *(1,) * (each.ndim - 1)) for name, each in self._state.items()}

    def initial_state(self, lead: tuple[int, ...] = ()) -> State:
        """The state of a recurrent policy before an episode: zeros [*lead, ...] by name; {} for any other policy."""
        state: State = {} if self._forward is None else dict(self._forward.initial_state(lead))
        preprocessing = self.description.preprocessing
        if preprocessing is not None and preprocessing.is_stateful:
            state |= {STATE_PREFIX + name: each for name, each in preprocessing.initial(lead).items()}
            state[EPISODE_BEGUN] = np.zeros(lead, bool)
        return state

    def advance(
        self, observations: Any, state: State, deterministic: bool = True, rng: np.random.Generator | None = None
    ) -> tuple[np.ndarray, State]:
        """`act` as a pure function: (actions, next state) for observations [B, ...] and `state`.

        Begin with `initial_state((B,))`, and replace the rows of ended episodes by its rows.
        """
        actions, _, after = self._act(self._coerce(observations)[0], state, deterministic, rng)
        return actions, after

    def advance_with_outputs(
        self, observations: Any, state: State, deterministic: bool = True, rng: np.random.Generator | None = None
    ) -> tuple[np.ndarray, np.ndarray, State]:
        """(actions, the head's outputs [B, outputs], next state): `advance`, with the outputs behind the actions."""
        return self._act(self._coerce(observations)[0], state, deterministic, rng)

    def outputs(self, observations: Any) -> np.ndarray:
        """The head's outputs [B, outputs] (logits, means or values) for raw observations [B, ...]."""
        if self.is_recurrent:
            raise UserError("the outputs of a recurrent policy depend on what came before; call outputs_after")
        seen, _ = self._preprocessed(self._coerce(observations)[0], {})
        return self._outputs(seen, {}, self._weights)[0]

    def outputs_after(self, observations: Any, state: State) -> tuple[np.ndarray, State]:
        """(the head's outputs [B, outputs], next state) for raw observations [B, ...] and `state`."""
        seen, state = self._preprocessed(self._coerce(observations)[0], state)
        return self._outputs(seen, state, self._weights)

    def replace(self, tensors: Mapping[str, Any]) -> None:
        """Replaces the tensors by copies of new ones, same names and shapes; other threads see all of them or none."""
        self._weights = self._prepare(tensors)

    def save(self, folder: Path | str) -> Path:
        """Writes the policy into `folder`; a reader gets the old policy or the new one, never a mixture."""
        policy_folder.write(Path(folder), self.description.to_json(), self.tensors)
        return Path(folder)

    def export_onnx(self, path: Path | str) -> Path:
        """Writes an ONNX model: observation [batch, ...] -> action, outputs."""
        from steppe.policies.onnx.export import export

        return export(self, Path(path))

    def _prepare(self, tensors: Mapping[str, Any]) -> _Weights:
        """Checks and copies the tensors, and derives from them what acting needs."""
        copies: dict[str, np.ndarray] = {}
        for name, shape in self._shapes.items():
            if name not in tensors:
                raise UserError(f'the policy lacks the tensor "{name}" of shape {shape}')
            dtype = self.description.action.dtype if name == "constant/action" else np.float32
            copies[name] = np.array(tensors[name], dtype, order="C")
            if copies[name].shape != shape:
                raise UserError(f'the tensor "{name}" of the policy must have shape {shape}, not {copies[name].shape}')
        if unknown := tensors.keys() - self._shapes.keys():
            raise UserError(f'the policy has a tensor "{min(unknown)}" that its description does not know')
        torso = {name.removeprefix("torso/"): each for name, each in copies.items() if name.startswith("torso/")}
        layers = None if self._forward is None else self._forward.prepare(torso)
        normalizer = None
        if self.description.normalizer is not None and "normalizer/mean" in copies:
            scale = np.float32(1) / np.sqrt(copies["normalizer/var"] + np.float32(1e-8))
            normalizer = (copies["normalizer/mean"], scale, np.float32(self.description.normalizer["clip"]))
        shortcut = None
        if self._forward is not None and "head/kernel" in copies:
            shortcut = self._forward.shortcut(layers, (copies["head/kernel"], copies["head/bias"]))
        return _Weights(copies, layers, normalizer, shortcut)

    def _act(
        self, observations: np.ndarray, state: State, deterministic: bool, rng: np.random.Generator | None
    ) -> tuple[np.ndarray, np.ndarray, State]:
        """(actions [B, ...] as the environment takes them, the head's outputs, next state)."""
        space, head, weights = self.description.action, self.description.head, self._weights
        observations, state = self._preprocessed(observations, state)
        outputs, state = self._outputs(observations, state, weights)
        if self.kind == "constant":
            actions = np.broadcast_to(weights.tensors["constant/action"], (len(observations), *space.shape)).copy()
            return actions, outputs, state
        if deterministic and self.kind != "random":
            action = heads.greedy(self.kind, outputs, space)
        else:
            columns = heads.noise_of(self.kind, space)
            noise = heads.draw_noise(columns, (len(observations),), self._rng if rng is None else rng)
            log_std = weights.tensors.get("head/log_std", 0.0)
            spread = {name: head[name] for name in ("epsilon", "sigma") if name in head}
            action = heads.sample(self.kind, outputs, noise, space, log_std=log_std, **spread)
        return heads.postprocess(self.kind, action, space), outputs, state

    def _outputs(self, observations: np.ndarray, state: State, weights: _Weights) -> tuple[np.ndarray, State]:
        tensors = weights.tensors
        if self._forward is None or weights.layers is None:
            constant = tensors.get("constant/action", np.zeros(0)).ravel().astype(np.float32)
            return np.tile(constant, (len(observations), 1)), state
        if weights.normalizer is not None:
            mean, scale, clip = weights.normalizer
            observations = np.clip((observations - mean) * scale, -clip, clip)
        if weights.shortcut is not None and len(observations) == 1 and observations.dtype == np.float32:
            return weights.shortcut(observations[0])[None], state
        if self._forward.plan.states:
            self._check_state(state, len(observations))
            features, after = self._forward.advance(weights.layers, observations, state)
            state = state | after
        else:
            features = self._forward(weights.layers, observations)
        if "head/kernel" in tensors:
            outputs = np.dot(features, tensors["head/kernel"])
            outputs += tensors["head/bias"]
            return outputs, state
        value = features @ tensors["head/value/kernel"] + tensors["head/value/bias"]
        advantage = features @ tensors["head/advantage/kernel"] + tensors["head/advantage/bias"]
        return value + _centred(advantage, self.description.action), state

    def _preprocessed(self, observations: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """(the network's input from raw observations [B, ...], next state)."""
        preprocessing = self.description.preprocessing
        if preprocessing is None:
            return observations, state
        if not preprocessing.is_stateful:
            return preprocessing(observations, {}, np.zeros(len(observations), bool))[0], state
        self._check_state(state, len(observations))
        before = {
            name.removeprefix(STATE_PREFIX): each for name, each in state.items() if name.startswith(STATE_PREFIX)
        }
        seen, after = preprocessing(observations, before, ~state[EPISODE_BEGUN])
        after_by_name = {STATE_PREFIX + name: each for name, each in after.items()}
        return seen, state | after_by_name | {EPISODE_BEGUN: np.ones(len(observations), bool)}

    def _kept_state(self, rows: int) -> State:
        """The state that `act` has kept, or the initial one."""
        if self._state is None:
            return self.initial_state((rows,))
        known = len(next(iter(self._state.values())))
        if known != rows:
            raise UserError(
                f"this policy remembers {known} episodes but got {rows} observations; call reset() before new episodes"
            )
        return self._state

    def _check_state(self, state: State, rows: int) -> None:
        for name, expected in self.initial_state((rows,)).items():
            if name not in state or np.shape(state[name]) != expected.shape:
                raise UserError(
                    f'this recurrent policy needs the state "{name}" of shape {expected.shape}; begin an episode with '
                    "initial_state, and hand on what comes back"
                )

    def _check_finite(self, observations: np.ndarray) -> None:
        """Refuses NaN and infinity, whose actions would be meaningless."""
        # Not in _coerce, since a server checks the numbers of a request when it reads them.
        if self._dtype.kind == "f" and 0 in np.isfinite(observations).tobytes():
            bad = observations[~np.isfinite(observations)][0]
            raise UserError(f"an observation must hold finite numbers, but this one has {bad} in it")

    def __repr__(self) -> str:
        about = self.description
        return (
            f"<Policy of {about.agent} on {about.environment or 'an unknown environment'} at timestep "
            f"{about.timestep:,}: {_kind(about.shown)} -> {_kind(about.action)}>"
        )

    def _coerce(self, observation: Any) -> tuple[np.ndarray, bool]:
        """(observations [B, *shape], whether a batch was given)."""
        space = self.description.shown
        dtype = self._dtype
        try:
            given = np.asarray(observation)
            array = given if given.dtype == dtype else _cast(given, dtype)
        except (TypeError, ValueError) as error:
            raise UserError(f"an observation must be numbers of shape {space.shape}: {error}") from error
        is_batch = array.ndim == len(space.shape) + 1
        if array.shape[is_batch:] != space.shape:
            expected = f"{space.shape}, or {('batch', *space.shape)} for several".replace("'", "")
            raise UserError(f"an observation must have shape {expected}, but this one has shape {array.shape}")
        if not isinstance(space, Box):
            _check_range(array, space)
        return (array, True) if is_batch else (array[None], False)


class _Weights(NamedTuple):
    """One version of the tensors and the values derived from them, replaced as a whole."""

    tensors: dict[str, np.ndarray]
    layers: Layers | None
    normalizer: tuple[np.ndarray, np.ndarray, np.float32] | None
    shortcut: Callable[[np.ndarray], np.ndarray] | None


def load_policy(path: Path | str, *, allow_modules: str | Iterable[str] | AllowedModules = ()) -> Policy:
    """Loads a policy from its folder, its policy.json, or a run folder (its policy/).

    A policy may have layers that are code of a Python module. Only modules in `allow_modules` are imported; a policy
    that names another one is refused.
    """
    allowed = allow_modules if isinstance(allow_modules, AllowedModules) else AllowedModules.of(allow_modules)
    stored = policy_folder.read(Path(path))
    try:
        description = json.loads(stored.description)
        whose = f"the policy in {shown_path(stored.file.parent)}"
        policy = Policy(PolicyDescription.from_json(description, allowed, whose), stored.tensors)
    except ModuleNotAllowed:
        raise
    except Exception as error:
        # A forged description can fail anywhere in the code that reads it.
        raise UserError(f"{stored.file} holds a description that cannot be understood: {error}") from error
    policy_folder.check_manifest(stored, description)
    return policy


def _centred(advantages: np.ndarray, space: Space) -> np.ndarray:
    """Advantages [B, options] minus the mean of their choice."""
    if not isinstance(space, MultiDiscrete):
        return advantages - advantages.mean(-1, keepdims=True)
    parts = np.split(advantages, np.cumsum(space.nvec)[:-1], -1)
    return np.concatenate([part - part.mean(-1, keepdims=True) for part in parts], -1)


def _kind(space: Space) -> str:
    """A space in a word, such as `Box(4,)` or `Discrete(2)`."""
    if isinstance(space, Discrete):
        return f"Discrete({space.n})"
    return f"Box{space.shape}" if isinstance(space, Box) else f"MultiDiscrete{tuple(space.nvec)}"


def _input_dtype(space: Space) -> np.dtype:
    if isinstance(space, Box):
        return np.dtype(np.uint8 if space.dtype == "uint8" else np.float32)
    return np.dtype(np.int32)


def _cast(given: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The same numbers in another type; a ValueError if that would change whole numbers."""
    with np.errstate(invalid="ignore"):
        array = given.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(array, given):
        raise ValueError(f"they are not all whole numbers that {dtype} can hold")
    return array


def _check_range(array: np.ndarray, space: Discrete | MultiDiscrete) -> None:
    """Refuses choices that do not exist, whose one-hot vectors would be all zeros."""
    first = space.start if isinstance(space, Discrete) else 0
    end = first + space.n if isinstance(space, Discrete) else np.asarray(space.nvec)
    if np.any(array < first) or np.any(array >= end):
        raise UserError(f"an observation must lie in {first} .. {end - 1}, but this one is {array.tolist()}")
