"""Translates update_mode and memory: when agents learn and from how much data."""

from __future__ import annotations

from types import NoneType
from typing import Any

from steppe.specs.loading.suggestions import did_you_mean
from steppe.specs.loading.validation import shown
from steppe.tensorforce.translation import AgentTranslation, TranslationError

_UNITS = ("timesteps", "episodes")
_REPLAYS = ("replay", "prioritized_replay", "naive_prioritized_replay")


def settle(agent: AgentTranslation) -> None:
    """Translates the settings of the agent's family."""
    match agent.family:
        case "memory":
            _settle_replay(agent)
        case "rollouts":
            _settle_rollouts(agent)
        case "otherwise":
            _explain(agent, "this agent learns from what it just saw, `horizon` timesteps cut into `minibatches`")
        case _:
            _explain(agent, "this agent does not learn; leave it out")


def count_updates(agent: AgentTranslation) -> None:
    """Converts target_sync_frequency from timesteps, as in TensorForce, to updates."""
    data = agent.data
    if "target_sync_frequency" not in data or not agent.counts_timesteps or agent.family != "memory":
        return
    timesteps, frequency = data["target_sync_frequency"], agent.number("update_frequency")
    each = agent.number("updates")
    if not all(_is_count(number) for number in (timesteps, frequency, each)):
        return
    each *= steps_of(data.get("optimizer"))
    updates = max(1, round(timesteps * each / frequency))
    if updates != timesteps:
        data["target_sync_frequency"] = updates
        what = "one update" if each == 1 else f"{each} updates"
        agent.notices.append(
            f"target_sync_frequency {timesteps:g} counts timesteps in this old file; with {what} every {frequency:g} "
            f"timesteps that is every {updates} updates"
        )


def _settle_replay(agent: AgentTranslation) -> None:
    """Translates batch size, frequency and first update."""
    mode = _update_mode(agent)
    if agent.learned_from_episodes:
        mode = _replay_instead(agent, mode)
    if mode.get("unit") == "episodes":
        raise TranslationError(
            'update_mode.unit is "episodes", but an agent with a replay memory learns from timesteps; write that',
            "update_mode",
            "unit",
        )
    names = {"batch_size": "batch_size", "frequency": "update_frequency", "first_update": "learning_starts"}
    for old, new in names.items():
        if old in mode:
            agent.put(new, mode[old], "update_mode", old)
    if isinstance(agent.data.get("memory"), dict):
        agent.data["memory"] = _replay(agent, dict(agent.data["memory"]))


def _replay_instead(agent: AgentTranslation, mode: dict[str, Any]) -> dict[str, Any]:
    """TensorForce's words for learning from the latest episodes, with a notice on their replacement."""
    replaced, memory = [], agent.data.get("memory")
    if mode.get("unit") == "episodes":
        replaced.append("update_mode in episodes")
        mode = {}
    if memory == "latest" or (isinstance(memory, dict) and memory.get("type") == "latest"):
        replaced.append('memory "latest"')
        agent.data["memory"] = (memory if isinstance(memory, dict) else {}) | {"type": "replay"}
    if replaced:
        size = mode.get("batch_size", agent.number("batch_size"))
        frequency = mode.get("frequency", agent.number("update_frequency"))
        agent.notices.append(
            f"{' and '.join(replaced)}: this agent has a replay memory instead, and learns from {shown(size)} "
            f"timesteps of it every {shown(frequency)} timesteps"
        )
    return mode


def _replay(agent: AgentTranslation, memory: dict[str, Any]) -> dict[str, Any]:
    """The memory without options that only TensorForce's had."""
    reasons = {
        "random_sampling": (True, "timesteps that follow each other are too alike to learn from; leave it out"),
        "prioritization_constant": (0, "use priority_exponent below 1 to keep small errors from being forgotten"),
        "buffer_size": (None, ""),
    }
    if agent.is_old and memory.get("random_sampling") is False:
        del memory["random_sampling"]
        agent.notices.append("memory.random_sampling false has no effect: timesteps are drawn at random, one by one")
    for name, (harmless, reason) in reasons.items():
        value = memory.pop(name, None)
        if reason and value is not None and value != harmless:
            raise TranslationError(f'"memory.{name}" cannot be {shown(value)}: {reason}', "memory", name)
        if value is not None and not reason:
            agent.notices.append(f"memory.{name} has no effect: new timesteps can be drawn at once")
    return {name: value for name, value in memory.items() if value is not None or name == "final_importance_exponent"}


def _settle_rollouts(agent: AgentTranslation) -> None:
    """Translates the size of a rollout, in timesteps or episodes of all environments together."""
    memory = _latest(agent)
    capacity = memory.get("capacity")
    mode = _update_mode(agent)
    unit, size, frequency = mode.get("unit", "timesteps"), mode.get("batch_size"), mode.get("frequency")
    if "first_update" in mode:
        raise TranslationError(
            '"update_mode.first_update" has no meaning here: this agent learns whenever a rollout is full',
            "update_mode",
            "first_update",
        )
    if frequency is not None and frequency != size:
        raise TranslationError(
            f"update_mode.frequency is {shown(frequency)}, but this agent learns from all it saw once, as often as it "
            f"has batch_size {unit}; leave frequency out",
            "update_mode",
            "frequency",
        )
    if size is None and unit == "episodes":
        raise TranslationError('update_mode.unit is "episodes", but batch_size does not say how many', "update_mode")
    if size is not None:
        agent.put(f"rollout_{unit}", size, "update_mode", "batch_size")
    if capacity is None:
        return
    if unit == "episodes":
        agent.put("rollout_timesteps", capacity, "memory", "capacity")
    elif _is_count(wanted := agent.data.get("rollout_timesteps")) and capacity < wanted:
        where = ".".join(map(str, agent.written("rollout_timesteps")))
        raise TranslationError(
            f"memory.capacity {capacity:g} is less than {where} {wanted:g}; raise it", "memory", "capacity"
        )
    elif wanted is None:
        agent.notices.append("memory.capacity has no effect without update_mode: a rollout is all that is kept")


def _latest(agent: AgentTranslation) -> dict[str, Any]:
    """The old memory of on-policy agents, removed from the settings."""
    memory = agent.data.pop("memory", None)
    memory = {"type": memory} if isinstance(memory, str) else memory
    if memory is None:
        return {}
    if not isinstance(memory, dict):
        raise TranslationError(
            f'memory must be "latest" or an object, not {shown(memory)}; it may be left out', "memory"
        )
    for name in memory:
        if name not in (known := ("type", "capacity", "include_next_states")):
            way_out = did_you_mean(name, known) or "; it has type, capacity and include_next_states"
            raise TranslationError(f'memory has no "{name}"{way_out}', "memory", name)
    kind = memory.get("type", "latest")
    if kind in _REPLAYS:
        raise TranslationError(
            f'memory "{kind}" is for agents such as dqn and sac; this one learns from what it just saw',
            "memory",
            "type",
        )
    if kind != "latest" and kind is not None:
        way_out = did_you_mean(kind, ["latest"]) if isinstance(kind, str) else ""
        way_out = way_out or '; this agent has "latest"'
        raise TranslationError(f"unknown memory {shown(kind)}{way_out}", "memory", "type")
    if not isinstance(memory.get("include_next_states"), bool | NoneType):
        raise TranslationError("include_next_states must be true or false", "memory", "include_next_states")
    if memory.get("capacity") is not None and not _is_count(memory["capacity"]):
        raise TranslationError("capacity must be a whole number of at least 1", "memory", "capacity")
    return memory


def _update_mode(agent: AgentTranslation) -> dict[str, Any]:
    """The old update_mode without nulls, removed from the settings."""
    mode = agent.data.pop("update_mode", None)
    if mode is None:
        return {}
    if not isinstance(mode, dict):
        raise TranslationError(
            f"update_mode must be an object with unit, batch_size and frequency, not {shown(mode)}", "update_mode"
        )
    for name in mode:
        if name not in (known := ("unit", "batch_size", "frequency", "first_update")):
            way_out = did_you_mean(name, known) or "; it has unit, batch_size and frequency"
            raise TranslationError(f'update_mode has no "{name}"{way_out}', "update_mode", name)
    unit = mode.get("unit")
    if unit is not None and unit not in _UNITS:
        way_out = did_you_mean(unit, _UNITS) if isinstance(unit, str) else ""
        raise TranslationError(
            f'update_mode.unit must be "timesteps" or "episodes", not {shown(unit)}{way_out}', "update_mode", "unit"
        )
    return {name: value for name, value in mode.items() if value is not None}


def _explain(agent: AgentTranslation, reason: str) -> None:
    for word in agent.old(("memory", "update_mode", "batch_size")):
        if agent.data.pop(word) is not None:
            raise TranslationError(f'"{word}" has no meaning here: {reason}', word)


def steps_of(optimizer: Any) -> int:
    """The number of updates that one step of an optimiser counts as."""
    if not isinstance(optimizer, dict):
        return 1
    own = optimizer.get("num_steps", 10) if optimizer.get("type") == "multi_step" else 1
    return (own if _is_count(own) else 1) * steps_of(optimizer.get("optimizer"))


def _is_count(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value >= 1 and float(value).is_integer()
