"""TensorForce's words for settings: understood where they mean something here, explained where they do not."""

from __future__ import annotations

from typing import Any

_SAME_THING = {
    "actions_exploration": "exploration",
    "distributions": "distribution",
    "double_q_model": "double",
    "entropy_regularization": "entropy_coefficient",
    "gamma": "discount",
    "likelihood_ratio_clipping": "clip",
    "step_optimizer": "optimizer",
}
"""Old word -> the setting's name."""
_ABSENCE: dict[str, Any] = {
    "clip": 1e9,
    "entropy_coefficient": 0.0,
    "exploration": {"type": "constant"},
    "gae_lambda": 1.0,
    "variable_noise": 0.0,
}
"""What null meant, where it is not the default."""
_EXPLAINED = {
    "batched_observe": "observations are never batched behind the agent's back; leave it out",
    "batching_capacity": "observations are never batched behind the agent's back; leave it out",
    "device": "JAX chooses the device; set the environment variable JAX_PLATFORMS instead",
    "execution": "how the work is spread is the experiment's run_mode",
    "ls_unroll_loop": "loops are compiled as loops; leave it out",
    "network": "the network is a field of the experiment, beside the agent",
    "saver": "when to save is the experiment's saver_frequency",
    "scope": "parameters have names of their own; leave it out",
    "summarizer": "when to write summaries is the experiment's summary_frequency",
    "states": "the environment says what its states are; leave it out",
    "actions": "the environment says what its actions are; leave it out",
}
_EXPLORES_BY_DRAWING = (
    '"actions_exploration" has no meaning here: this agent explores by drawing from its policy; use '
    "entropy_regularization, or variable_noise"
)


def understand(data: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    """The settings with today's names; ValueError for old words that mean nothing here, and for things said twice."""
    data = dict(data)
    for old, new in _SAME_THING.items():
        if old not in data or old in fields:
            continue
        if new in fields:
            _put(data, new, data.pop(old), old)
        elif data[old] is None:
            data.pop(old)
    for name in fields & set(data):
        if data[name] is None and name in _ABSENCE:
            data[name] = _ABSENCE[name]
    for old, reason in _EXPLAINED.items():
        if old in data and old not in fields and data.pop(old) is not None:
            raise ValueError(f'"{old}" has no meaning here: {reason}')
    if "actions_exploration" in data and "exploration" not in fields:
        raise ValueError(_EXPLORES_BY_DRAWING)
    _understand_distributions(data)
    _understand_huber(data, fields)
    _understand_baseline_mode(data, fields)
    if "memory" in fields:
        _understand_update_mode(data)
    elif "rollout_timesteps" in fields:
        _understand_rollouts(data)
    elif "horizon" in fields:
        _explain_rollouts(data)
    return data


def _understand_distributions(data: dict[str, Any]) -> None:
    """TensorForce gave an object, or one for each action by name; null is the natural one."""
    given = data.get("distribution", "auto")
    if isinstance(given, dict) and "type" not in given and len(given) == 1:
        (given,) = given.values()
    if isinstance(given, dict) and set(given) == {"type"}:
        given = given["type"]
    if "distribution" in data:
        data["distribution"] = "auto" if given is None else given


def _understand_huber(data: dict[str, Any], fields: set[str]) -> None:
    """TensorForce gave the error from which on it counts linearly, or null."""
    if "huber_loss" in data and "huber" in fields:
        value = data.pop("huber_loss")
        _put(data, "huber", value or False, "huber_loss")


def _understand_baseline_mode(data: dict[str, Any], fields: set[str]) -> None:
    """ "states" is a value network of its own, "network" one that shares the policy's layers."""
    if "baseline_mode" not in data or "share_network" not in fields:
        return
    mode = data.pop("baseline_mode")
    if mode not in ("states", "network", None):
        raise ValueError(f'baseline_mode must be "states", "network" or null, not {mode!r}')
    if mode is not None:
        _put(data, "share_network", mode == "network", "baseline_mode")


def _understand_update_mode(data: dict[str, Any]) -> None:
    """For agents with a replay memory: how much each update learns from, and how often."""
    mode = _update_mode(data)
    if mode.get("unit") == "episodes":
        raise ValueError(
            'update_mode.unit is "episodes", but an agent with a replay memory learns from timesteps: write "timesteps"'
        )
    for old, new in {"batch_size": "batch_size", "frequency": "update_frequency"}.items():
        if old in mode:
            _put(data, new, mode[old], f"update_mode.{old}")


def _understand_rollouts(data: dict[str, Any]) -> None:
    """For agents that learn from rollouts: of how many timesteps, in all environments together."""
    memory = data.pop("memory", None)
    kind = memory.get("type") if isinstance(memory, dict) else memory
    if isinstance(memory, dict) and (unknown := set(memory) - {"type", "capacity", "include_next_states"}):
        raise ValueError(f'memory has no "{min(unknown)}"; it has type, capacity and include_next_states')
    if kind not in (None, "latest"):
        raise ValueError(f'memory "{kind}" is for agents such as dqn and sac; this one learns from what it just saw')
    mode = _update_mode(data)
    unit, size, frequency = mode.get("unit", "timesteps"), mode.get("batch_size"), mode.get("frequency")
    if frequency is not None and frequency != size:
        raise ValueError(
            f"update_mode.frequency is {frequency}, but this agent learns from all it saw once, as often as it has "
            f"batch_size {unit}; leave frequency out"
        )
    if size is not None:
        _put(data, f"rollout_{unit}", size, "update_mode.batch_size")
        if unit == "episodes" and isinstance(memory, dict) and memory.get("capacity") is not None:
            _put(data, "rollout_timesteps", memory["capacity"], "memory.capacity")


def _explain_rollouts(data: dict[str, Any]) -> None:
    """For agents that TensorForce did not have."""
    for old in {"memory", "update_mode"} & set(data):
        raise ValueError(
            f'"{old}" has no meaning here: this agent learns from what it just saw, `horizon` timesteps of each '
            "environment cut into `minibatches`"
        )


def _update_mode(data: dict[str, Any]) -> dict[str, Any]:
    """The old update_mode, taken out of the settings."""
    mode = data.pop("update_mode", None) or {}
    if not isinstance(mode, dict) or (unknown := set(mode) - {"unit", "batch_size", "frequency"}):
        what = f'no "{min(unknown)}"' if isinstance(mode, dict) else "to be an object"
        raise ValueError(f"update_mode has {what}; it has unit, batch_size and frequency")
    if mode.get("unit", "timesteps") not in ("timesteps", "episodes"):
        raise ValueError(f'update_mode.unit must be "timesteps" or "episodes", not {mode["unit"]!r}')
    return mode


def _put(data: dict[str, Any], name: str, value: Any, said_as: str) -> None:
    if name in data:
        raise ValueError(f'"{name}" and "{said_as}" say the same thing; give one of them')
    data[name] = value
