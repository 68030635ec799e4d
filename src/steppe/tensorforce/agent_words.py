"""Translates agents in files for TensorForce into today's words."""

from __future__ import annotations

from typing import Any

from steppe.specs.learning.agent import DEFAULTS, DEFAULTS_OF
from steppe.specs.learning.defaults_by_kind import Kind, defaults_for
from steppe.specs.loading.validation import shown
from steppe.tensorforce import elsewhere, known_settings, optimizer_words, parts, rollout_words, without_effect
from steppe.tensorforce.defaults import AGENTS, OWNERS, defaults_of, is_for_tensorforce, with_optimizers
from steppe.tensorforce.names import present_name, stand_in_notice
from steppe.tensorforce.renamed import rename, settle_nulls
from steppe.tensorforce.translation import AgentTranslation, Translation, TranslationError


def translate_agent(data: Any, kind: Kind = "other") -> Translation:
    """Translates an agent that learns in a `kind` of environment; data that is no agent is left for its spec to refuse.

    TensorForce's defaults are written out, so that translating the result again does not change it.
    """
    data = {"type": data} if isinstance(data, str) else data
    if not isinstance(data, dict) or not isinstance(word := data.get("type"), str):
        return Translation(data)
    name, notice = present_name(word), stand_in_notice(word)
    notices = () if notice is None else (notice,)
    settings = {key: value for key, value in data.items() if key not in ("type", DEFAULTS_OF, DEFAULTS)}
    owner = _owner(name, word, data, settings)
    head: dict[str, Any] = {"type": name} | ({} if owner is None else {DEFAULTS_OF: owner})
    if name not in known_settings.AGENTS:
        return Translation(head | settings, notices)
    is_old = owner == "tensorforce" and DEFAULTS not in data
    defaults = defaults_for(name, kind).settings
    if owner == "tensorforce":
        defaults = defaults_of(name, settings) if is_old else data[DEFAULTS]
        head[DEFAULTS] = defaults
        settings = with_optimizers(settings)
    defaults = {**known_settings.DEFAULTS.get(name, {}), **defaults}
    agent = understood(AgentTranslation(name, known_settings.AGENTS[name], settings, defaults, is_old=is_old))
    return Translation(head | agent.data, (*notices, *agent.notices), agent.moved)


def understood(agent: AgentTranslation) -> AgentTranslation:
    """The settings in today's words; raises a TranslationError with the reason if that is impossible."""
    without_effect.drop(agent)
    rename(agent)
    parts.settle_baseline(agent)
    elsewhere.explain(agent)
    settle_nulls(agent)
    parts.settle_others(agent)
    rollout_words.settle(agent)
    optimizer_words.settle(agent)
    rollout_words.count_updates(agent)
    return agent


def _owner(name: str, word: str, data: dict[str, Any], settings: dict[str, Any]) -> str | None:
    """The owner of the defaults: the one the agent names, else "tensorforce" if its words are TensorForce's."""
    owner = data.get(DEFAULTS_OF)
    if owner is None:
        return "tensorforce" if is_for_tensorforce(name, word, settings) else None
    if owner not in OWNERS:
        raise TranslationError(f'{DEFAULTS_OF} must be "steppe" or "tensorforce", not {shown(owner)}')
    if owner == "tensorforce" and name not in AGENTS:
        raise TranslationError(f'{DEFAULTS_OF} cannot be "tensorforce": TensorForce had no agent "{name}"')
    return str(owner)
