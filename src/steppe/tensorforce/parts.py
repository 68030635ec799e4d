"""Settings that are objects: baselines, distributions, exploration, critics and actions as TensorForce wrote them."""

from __future__ import annotations

from types import NoneType
from typing import Any

from steppe.specs.loading.suggestions import did_you_mean
from steppe.specs.loading.validation import Steps, shown
from steppe.tensorforce.layer_words import translate_network
from steppe.tensorforce.translation import AgentTranslation, TranslationError


def settle_baseline(agent: AgentTranslation) -> None:
    """ "states" is a value network of its own, "network" one that shares the policy's layers, null none at all."""
    data = agent.data
    if "baseline_mode" not in data or "share_network" not in agent.fields:
        return
    mode = data.pop("baseline_mode")
    own = [name for name in ("baseline", "baseline_optimizer") if data.get(name) is not None]
    if mode is None:
        if own:
            raise TranslationError(
                f'baseline_mode null says that there is no baseline, but {own[0]} is given; write "states", or leave '
                f"{own[0]} out",
                "baseline_mode",
            )
        for name in ("baseline", "baseline_optimizer"):
            data.pop(name, None)
        agent.put("baseline", "none", "baseline_mode")
        agent.notices.append(
            'baseline_mode null: no value network is learned ("baseline": "none"); write "states" for one'
        )
    elif mode == "states" or (mode == "network" and not own):
        agent.put("share_network", mode == "network", "baseline_mode")
    elif mode == "network":
        raise TranslationError(
            f'baseline_mode "network" has policy and value network share their layers, so {own[0]} has no place; leave '
            'it out, or write "states"',
            "baseline_mode",
        )
    else:
        way_out = did_you_mean(mode, ["states", "network"]) if isinstance(mode, str) else ""
        raise TranslationError(
            f'baseline_mode must be "states", "network" or null, not {shown(mode)}{way_out}', "baseline_mode"
        )


def settle_others(agent: AgentTranslation) -> None:
    """Translates distribution, exploration, critic and other settings that are objects."""
    data, fields = agent.data, agent.fields
    if agent.name == "trpo" and data.get("baseline_optimizer", ()) is None:
        del data["baseline_optimizer"]
    if "distribution" in data and "distribution" in fields:
        _settle_distribution(agent)
    if "exploration" in data and "exploration" in fields:
        data["exploration"] = _only_action(agent, "exploration", "explores")
    if data.get("huber") == 0 and "huber" in fields:
        data["huber"] = False
    if "critic_network" in data and "critic_network" in fields:
        _settle_critic(agent)
    if isinstance(data.get("baseline"), dict):
        data["baseline"] = _baseline(agent, data["baseline"], agent.written("baseline"))
    for name in ("states_preprocessing", "reward_preprocessing"):
        if data.get(name) is not None:
            _settle_stages(agent, name)
    if isinstance(data.get("action"), dict) and "action" in fields:
        data["action"] = _only_action(agent, "action", "is constant", is_object=False)


def _settle_distribution(agent: AgentTranslation) -> None:
    """TensorForce took one object, or one for each action by name."""
    given = _only_action(agent, "distribution", "is drawn")
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        agent.data["distribution"] = given
        return
    where = agent.written("distribution")
    for name, value in given.items():
        if name == "type" or value is None or (name, value) == ("mean", 0):
            continue
        if (given["type"], name) == ("gaussian", "log_stddev"):
            agent.put("initial_log_std", value, *where, name)
        elif name in _DISTRIBUTION_OPTIONS:
            raise TranslationError(
                f'"{name}" of a distribution has no meaning here: {_DISTRIBUTION_OPTIONS[name]}', *where, name
            )
        else:
            way_out = did_you_mean(name, ["type", "log_stddev"]) or "; give its type alone"
            raise TranslationError(f'a distribution has no "{name}"{way_out}', *where, name)
    agent.data["distribution"] = given["type"]


_NETWORK_SAYS = "the network puts it out; leave it out"
_BOUNDS_SAY = "the environment says the bounds of its actions; leave it out"
_DISTRIBUTION_OPTIONS = {
    "mean": _NETWORK_SAYS,
    "log_stddev": "only gaussian has a spread of its own; leave it out",
    "alpha": _NETWORK_SAYS,
    "beta": _NETWORK_SAYS,
    "probabilities": _NETWORK_SAYS,
    "probability": _NETWORK_SAYS,
    "min_value": _BOUNDS_SAY,
    "max_value": _BOUNDS_SAY,
    "scope": "parameters have names of their own; leave it out",
    "summary_labels": "metrics are chosen for a whole experiment; leave it out",
}


def _only_action(agent: AgentTranslation, name: str, does: str, is_object: bool = True) -> Any:
    """The value written for the action by its name; an environment here has one action, of any number of parts."""
    given = agent.data[name]
    is_named = isinstance(given, dict) and given and "type" not in given
    if not is_named or (is_object and not all(isinstance(value, dict | str | NoneType) for value in given.values())):
        return given
    if is_object and not any(isinstance(value, dict) or key == "action" for key, value in given.items()):
        return given
    if len(given) > 1:
        raise TranslationError(
            f"one action {does} as a whole, whatever its parts; give one instead of one for each",
            *agent.written(name),
        )
    ((action, inner),) = given.items()
    agent.moved[(name,)] = (*agent.written(name), action)
    return inner


def _settle_critic(agent: AgentTranslation) -> None:
    """The critic of ddpg had two layers, given by their sizes."""
    given = agent.data["critic_network"]
    where = agent.written("critic_network")
    if not isinstance(given, dict) or not given or set(given) - {"size_t0", "size_t1"}:
        agent.data["critic_network"] = _network(agent, given, where)
        return
    sizes = [given.get("size_t0", 400), given.get("size_t1", 300)]
    layers = [{"type": "dense", "size": size, "activation": "relu"} for size in sizes]
    agent.data["critic_network"] = layers
    for index, name in enumerate(("size_t0", "size_t1")):
        agent.moved[("critic_network", index, "size")] = (*where, name)
    agent.notices.append(
        f"critic_network is two dense layers of {sizes[0]} and {sizes[1]}; the action joins before the first one, and "
        "nothing is normalised between them"
    )


def _baseline(agent: AgentTranslation, given: dict[str, Any], where: Steps) -> dict[str, Any]:
    """A baseline with its own network translated; the type was left out if there was a baseline for each state."""
    if given and "type" not in given and all(isinstance(inner, dict) for inner in given.values()):
        agent.moved[("baseline", "baselines")] = where
        given = {"type": "aggregated", "baselines": given}
    elif given.get("type") == "aggregated":
        where = (*where, "baselines")
    if isinstance(inner := given.get("baselines"), dict):
        states = inner.items()
        inner = {
            state: _baseline(agent, each, (*where, state)) if isinstance(each, dict) else each for state, each in states
        }
        return {**given, "baselines": inner}
    if "network" in given:
        return {**given, "network": _network(agent, given["network"], (*where, "network"))}
    return given


def _network(agent: AgentTranslation, given: Any, where: Steps) -> Any:
    try:
        network = translate_network(given)
    except TranslationError as error:
        raise error.below(*where) from None
    agent.notices += [notice for notice in network.notices if notice not in agent.notices]
    return network.data


def _settle_stages(agent: AgentTranslation, name: str) -> None:
    """TensorForce keyed stages by the name of their state; here the one state is called "state"."""
    given, where = agent.data[name], agent.written(name)
    is_keyed = isinstance(given, dict) and "type" not in given
    if name == "states_preprocessing" and is_keyed and all(isinstance(each, _STAGES) for each in given.values()):
        if unknown := given.keys() - {"state"}:
            raise TranslationError(
                f'there is no state "{min(unknown)}" with stages of its own, because an environment is observed as '
                "one state (Dict and Tuple observations become one vector); give one list of stages, or "
                '{"state": [...]}',
                *where,
                is_joint=True,
            )
        given = agent.data[name] = given.get("state", given)
        agent.moved[(name,)] = (*where, "state")
    stages = given if isinstance(given, list | tuple) else [given]
    if any(stage == "center" or (isinstance(stage, dict) and stage.get("type") == "center") for stage in stages):
        raise TranslationError(
            'there is no stage "center"; use "standardize", by an observation\'s own mean and deviation',
            *where,
            is_joint=isinstance(given, dict),
        )


_STAGES = (list, dict, str)
