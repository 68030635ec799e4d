"""The defaults of TensorForce's agents, for files that leave settings out.

There are two generations: flat files (first_update, update_frequency, batch_size beside the rest) have the defaults of
0.3.5, all others those of 0.4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steppe.tensorforce.names import is_tensorforces
from steppe.tensorforce.rollout_words import steps_of

OWNERS = ("steppe", "tensorforce")
AGENTS = ("dqn", "ddqn", "dqn_nstep", "dqfd", "naf", "ddpg", "ppo", "vpg", "trpo")
"""TensorForce's learning agents that exist here too."""
_FLAT = (
    *("first_update", "repeat_update", "update_frequency", "keep_last_timestep", "preprocessing", "explorations_spec"),
    *("states_preprocessing_spec", "reward_preprocessing_spec", "distributions_spec", "saver_spec", "summary_spec"),
)
"""Words of 0.3 that 0.4 dropped."""
_WORDS = (
    *("update_mode", "actions_exploration", "explorations_spec", "preprocessing", "states_preprocessing_spec"),
    *("reward_preprocessing_spec", "distributions", "distributions_spec", "entropy_regularization", "baseline_mode"),
    *("likelihood_ratio_clipping", "step_optimizer", "double_q_model", "huber_loss", "first_update", "repeat_update"),
    "keep_last_timestep",
)
"""TensorForce's words for settings that have other names here; not those that have no effect."""
_ADAM = {"type": "adam", "epsilon": 1e-8}
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"epsilon": 1e-8},
    "nadam": {"epsilon": 1e-8},
    "rmsprop": {"decay": 0.9, "epsilon": 1e-10},
    "natural_gradient": {"cg_max_iterations": 20, "cg_damping": 0.001},
    "optimized_step": {"ls_accept_ratio": 0.9},
}
"""TensorForce's defaults of optimizers, if they differ from Steppe's."""
_WITH_OPTIMIZERS = ("optimizer", "step_optimizer", "baseline_optimizer", "critic_optimizer")


def is_for_tensorforce(name: str, written: str, settings: Mapping[str, Any]) -> bool:
    """Whether an agent's file is for TensorForce: by the spelling of its name, or by two of TensorForce's words.

    One word is not enough, since some are other names of Steppe's settings; null, 0 and false do not count.
    """
    if name not in AGENTS:
        return False
    return is_tensorforces(written) or sum(bool(settings.get(word)) for word in _WORDS) >= 2


def defaults_of(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Today's settings -> TensorForce's defaults of that agent, some of which follow from the given settings."""
    is_flat = settings.get("update_mode") is None and any(word in settings for word in (*_FLAT, "batch_size"))
    if name in ("ppo", "vpg", "trpo"):
        found = _of_policy_gradient(name, settings, is_flat)
    else:
        found = _of_replay(name, settings, is_flat)
    if _has_no_type(settings, "exploration", "actions_exploration", "explorations_spec"):
        found.pop("exploration", None)
    if _has_no_type(settings, "optimizer", "step_optimizer"):
        found.pop("optimizer", None)
    return found


def with_optimizers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the defaults of TensorForce's optimizers written out."""
    changed = {name: _optimizer(settings[name]) for name in _WITH_OPTIMIZERS if settings.get(name) is not None}
    return {**settings, **changed}


def _of_replay(name: str, settings: Mapping[str, Any], is_flat: bool) -> dict[str, Any]:
    mode = _object(settings, "update_mode")
    usual = 10 if name == "ddpg" else 32
    size = _count(mode.get("batch_size"), _count(settings.get("batch_size"), usual))
    # Without a frequency 0.4 learned once for each batch; without an update_mode, dqn and its variants used 4.
    every = 4 if is_flat or (not mode and name != "ddpg") else size
    every = _count(mode.get("frequency"), _count(settings.get("update_frequency"), every))
    each = _count(settings.get("repeat_update"), _count(settings.get("updates"), 1)) * steps_of(
        settings.get("optimizer")
    )
    found: dict[str, Any] = {
        "discount": 0.99,
        "learning_rate": 1e-3,
        "optimizer": _ADAM,
        "max_gradient_norm": None,
        "batch_size": size,
        "update_frequency": every,
        "updates": 1,
        "learning_starts": 10_000 if is_flat else 0,
        "n_step": 1,
        "memory": {"type": "replay", "capacity": 100_000 if is_flat else 1000 * size},
        # TensorForce counted timesteps; here it is updates.
        "target_sync_frequency": max(1, round(10_000 * each / every)),
        "target_update_weight": 1.0,
        "exploration": {"type": "constant"},
    }
    if name == "ddpg":
        return found | {"critic_learning_rate": 1e-3, "critic_optimizer": _ADAM}
    found["huber"] = False
    found["double"] = name in ("ddqn", "dqfd")
    if name == "dqn_nstep":
        # It learned from the sums of whole episodes, which a replay memory does not hold.
        del found["n_step"]
        found |= {"batch_size": 32, "update_frequency": 4, "target_sync_frequency": 2500}
    if name == "dqfd":
        found |= {"expert_margin": 0.5, "supervised_weight": 0.1, "n_step_weight": 0.0}
        found |= {"demo_memory_capacity": 10_000, "demo_sampling_ratio": 0.2}
    return found


def _of_policy_gradient(name: str, settings: Mapping[str, Any], is_flat: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "discount": 0.99,
        "gae_lambda": 1.0,
        "learning_rate": 1e-3,
        "entropy_coefficient": 0.0,
        "normalize_advantages": False,
    }
    found |= _rollouts(settings, is_flat)
    if not any(settings.get(word) for word in ("baseline", "baseline_mode", "baseline_optimizer", "share_network")):
        found["baseline"] = {"type": "none"}
    if name == "trpo":
        iterations = 20 if is_flat else 10
        step = {"cg_max_iterations": iterations, "cg_damping": 0.001, "ls_max_iterations": 10, "ls_accept_ratio": 0.9}
        return found | step
    found |= {"optimizer": _ADAM, "max_gradient_norm": None}
    if name == "ppo":
        found["clip"] = 1e9 if is_flat else 0.2
        if is_flat:
            found |= {"learning_rate": 2.5e-4, "entropy_coefficient": 0.01}
        if not {"epochs", "minibatches"} & settings.keys():
            steps, part = (10, 1.0) if is_flat else (50, 0.1)
            found |= {"optimization_steps": steps, "subsampling_fraction": part}
    return found


def _rollouts(settings: Mapping[str, Any], is_flat: bool) -> dict[str, Any]:
    """The size of a rollout: 10 episodes of at most 1,000 timesteps each; in 0.3, 1,000 timesteps."""
    if any(settings.get(word) for word in ("horizon", "rollout_timesteps", "rollout_episodes", "batch_size")):
        return {}
    mode, memory = _object(settings, "update_mode"), _object(settings, "memory")
    if is_flat:
        return {"rollout_timesteps": 1000}
    if mode.get("unit") == "timesteps" or (mode.get("unit") is None and "batch_size" in mode):
        return {}
    episodes = _count(mode.get("batch_size"), 10)
    return {"rollout_episodes": episodes, "rollout_timesteps": _count(memory.get("capacity"), 1000 * episodes)}


def _optimizer(given: Any) -> Any:
    if isinstance(given, str) and given in _OPTIMIZERS:
        given = {"type": given}
    if not isinstance(given, dict):
        return given
    inner = {"optimizer": _optimizer(given["optimizer"])} if "optimizer" in given else {}
    usual = _OPTIMIZERS.get(given["type"], {}) if isinstance(given.get("type"), str) else {}
    return {**given, **{key: value for key, value in usual.items() if given.get(key) is None}, **inner}


def _has_no_type(settings: Mapping[str, Any], *names: str) -> bool:
    """Whether an object is given that changes parts of the default."""
    return any(isinstance(given := settings.get(name), dict) and given and "type" not in given for name in names)


def _object(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = settings.get(name)
    return value if isinstance(value, dict) else {}


def _count(value: Any, otherwise: int) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and value >= 1 and float(value).is_integer() else otherwise
