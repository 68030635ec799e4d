"""A front end for files of TensorForce and of its client tfcli: translates their words into today's.

`translate` is called once, where a file or a caller's dict is loaded. Specs, validators and runners know only today's
words. Data in today's words is returned unchanged, so a file need not say which words it uses.
"""

from __future__ import annotations

from typing import Any

from steppe.specs.learning.defaults_by_kind import kind_of_id
from steppe.tensorforce import client_files
from steppe.tensorforce.agent_words import translate_agent
from steppe.tensorforce.environment_names import translate_environment
from steppe.tensorforce.layer_words import translate_network
from steppe.tensorforce.overriding import as_written
from steppe.tensorforce.translation import Translation, TranslationError

__all__ = [
    "Translation",
    "TranslationError",
    "as_written",
    "in_present_fields",
    "translate",
    "translate_agent",
    "translate_cluster",
    "translate_environment",
    "translate_network",
]

OLD_FIELDS = {"timesteps": "total_timesteps", "max_episode_timesteps": "max_timesteps_per_episode"}
"""Names of an experiment's fields in old files and in TensorForce's runner -> today's."""


def translate(data: Any) -> Translation:
    """Translates an experiment with inlined sub-specs into today's words; may raise a TranslationError."""
    if not isinstance(data, dict):
        return Translation(data)
    notices: tuple[str, ...] = ()
    moved = {}
    if client_files.is_old(data):
        data, notices, _ = client_files.translate_client_file(data)
    data = in_present_fields(data)
    if "environment" in data:
        found = _part(translate_environment, data, "environment")
        data["environment"], notices = found.data, notices + found.notices
    if isinstance(cluster := data.get("cluster"), dict):
        data["cluster"] = translate_cluster(cluster).data
    if "network" in data:
        found = _part(translate_network, data, "network")
        data["network"], notices = found.data, notices + found.notices
    if "agent" in data:
        found = _part(lambda agent: translate_agent(agent, _kind(data.get("environment"))), data, "agent")
        data["agent"], notices = found.data, notices + found.notices
        moved = {("agent", *now): ("agent", *then) for now, then in found.moved.items()}
    return Translation(data, notices, moved)


def translate_cluster(data: Any) -> Translation:
    """A cluster, without the type that the old tfcli wrote into its file."""
    if not isinstance(data, dict) or data.get("type") != "cluster":
        return Translation(data)
    return Translation({name: value for name, value in data.items() if name != "type"})


def in_present_fields(data: dict[str, Any]) -> dict[str, Any]:
    """An experiment with today's names of its fields."""
    data = {name: value for name, value in data.items() if (name, value) != ("type", "experiment")}
    for old, new in OLD_FIELDS.items():
        if old in data and new not in data:
            data[new] = data.pop(old)
    return data


def _part(translator: Any, data: dict[str, Any], name: str) -> Translation:
    try:
        return translator(data[name])
    except TranslationError as error:
        raise error.below(name) from None


def _kind(environment: Any) -> Any:
    """The kind of an environment whose description may still be wrong."""
    if not isinstance(environment, dict):
        return "other"
    id = environment.get("id", environment.get("gym_id", environment.get("type")))
    settings = environment.get("settings")
    return kind_of_id(str(id), settings if isinstance(settings, dict) else {})
