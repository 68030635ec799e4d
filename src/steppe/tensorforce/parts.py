"""Settings that are objects: baselines, distributions, exploration, critics and actions as TensorForce wrote them."""

from __future__ import annotations

from types import NoneType
from typing import Any

from steppe.specs.loading.suggestions import did_you_mean
from steppe.specs.loading.validation import shown
from steppe.tensorforce.translation import Misread, Reading


def settle_baseline(reading: Reading) -> None:
    """ "states" is a value network of its own, "network" one that shares the policy's layers, null none at all."""
    data = reading.data
    if "baseline_mode" not in data or "share_network" not in reading.fields:
        return
    mode = data.pop("baseline_mode")
    own = [name for name in ("baseline", "baseline_optimizer") if data.get(name) is not None]
    if mode is None:
        if own:
            raise Misread(
                f'baseline_mode null says that there is no baseline, but {own[0]} is given; write "states", or leave '
                f"{own[0]} out",
                "baseline_mode",
            )
        for name in ("baseline", "baseline_optimizer"):
            data.pop(name, None)
        reading.put("baseline", "none", "baseline_mode")
        reading.notices.append(
            'baseline_mode null: no value network is learned ("baseline": "none"); write "states" for one'
        )
    elif mode == "states" or (mode == "network" and not own):
        reading.put("share_network", mode == "network", "baseline_mode")
    elif mode == "network":
        raise Misread(
            f'baseline_mode "network" has policy and value network share their layers, so {own[0]} has no place; leave '
            'it out, or write "states"',
            "baseline_mode",
        )
    else:
        way_out = did_you_mean(mode, ["states", "network"]) if isinstance(mode, str) else ""
        raise Misread(f'baseline_mode must be "states", "network" or null, not {shown(mode)}{way_out}', "baseline_mode")


def settle_others(reading: Reading) -> None:
    """The other objects."""
    data, fields = reading.data, reading.fields
    if data.get("baseline_optimizer", ()) is None and reading.default("baseline_optimizer") is not None:
        del data["baseline_optimizer"]
    if "distribution" in data and "distribution" in fields:
        _settle_distribution(reading)
    if "exploration" in data and "exploration" in fields:
        data["exploration"] = _only_action(reading, "exploration", "explores")
    if data.get("huber") == 0 and "huber" in fields:
        data["huber"] = False
    if isinstance(data.get("critic_network"), dict) and "critic_network" in fields:
        _settle_critic(reading)
    if isinstance(data.get("action"), dict) and "action" in fields:
        data["action"] = _only_action(reading, "action", "is constant", is_object=False)


def _settle_distribution(reading: Reading) -> None:
    """TensorForce gave an object, or one for each action by name."""
    given = _only_action(reading, "distribution", "is drawn")
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        reading.data["distribution"] = given
        return
    where = reading.written("distribution")
    for name, value in given.items():
        if name == "type" or value is None or (name, value) == ("mean", 0):
            continue
        if (given["type"], name) == ("gaussian", "log_stddev"):
            reading.put("initial_log_std", value, *where, name)
        elif name in _DISTRIBUTION_OPTIONS:
            raise Misread(
                f'"{name}" of a distribution has no meaning here: {_DISTRIBUTION_OPTIONS[name]}', *where, name
            )
        else:
            way_out = did_you_mean(name, ["type", "log_stddev"]) or "; give its type alone"
            raise Misread(f'a distribution has no "{name}"{way_out}', *where, name)
    reading.data["distribution"] = given["type"]


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


def _only_action(reading: Reading, name: str, does: str, is_object: bool = True) -> Any:
    """What was written for each action by its name; here an environment has one, of however many parts."""
    given = reading.data[name]
    is_named = isinstance(given, dict) and given and "type" not in given
    if not is_named or (is_object and not all(isinstance(value, dict | str | NoneType) for value in given.values())):
        return given
    if is_object and not any(isinstance(value, dict) or key == "action" for key, value in given.items()):
        return given
    if len(given) > 1:
        raise Misread(
            f"one action {does} as a whole, whatever its parts; give one instead of one for each",
            *reading.written(name),
        )
    ((action, inner),) = given.items()
    reading.places[(name,)] = (*reading.written(name), action)
    return inner


def _settle_critic(reading: Reading) -> None:
    """The sizes of the two layers that TensorForce's critic of ddpg had."""
    given = reading.data["critic_network"]
    if set(given) - {"size_t0", "size_t1"} or not given:
        return
    sizes = [given.get("size_t0", 400), given.get("size_t1", 300)]
    layers = [{"type": "dense", "size": size, "activation": "relu"} for size in sizes]
    reading.data["critic_network"] = layers
    where = reading.written("critic_network")
    for index, name in enumerate(("size_t0", "size_t1")):
        reading.places[("critic_network", index, "size")] = (*where, name)
    reading.notices.append(
        f"critic_network is two dense layers of {sizes[0]} and {sizes[1]}; the action joins before the first one, and "
        "nothing is normalised between them"
    )
