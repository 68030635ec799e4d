"""Settings that Steppe has elsewhere or does not need: dropped with one notice, refused if they ask for more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steppe.specs.loading.suggestions import did_you_mean
from steppe.tensorforce.translation import AgentTranslation, TranslationError


def drop(agent: AgentTranslation) -> None:
    """Drops settings without effect; one notice names them and the experiment's fields that take their place."""
    dropped, instead = [], []
    for word in agent.old(JUDGES):
        value = agent.data.pop(word)
        if value is not None and (field := JUDGES[word](word, value)) is not None:
            dropped.append(word)
            instead += [field] if field else []
    if not dropped:
        return
    sentence = f"{_listed(dropped)} of the agent {'have' if dropped[1:] else 'has'} no effect"
    if instead:
        sentence += f"; the experiment's {_listed(instead)} {'say' if instead[1:] else 'says'} this"
    agent.notices.append(sentence)


def _saver(word: str, value: Any) -> str:
    known = {"directory", "seconds", "steps", "load", "file", "basename", "max_checkpoints"}
    value = _object(word, value, known)
    frequency = _frequency("saver_frequency", value, "600s")
    if value.get("load"):
        raise TranslationError(
            f'"{word}.load" has no meaning here: to train on from a checkpoint, run "steppe experiment resume NAME"',
            word,
            "load",
        )
    _no_directory(word, value, f"checkpoints go to the run's own folder, as often as the experiment's {frequency} says")
    return frequency


def _summarizer(word: str, value: Any) -> str:
    known = {"directory", "seconds", "steps", "labels", "meta_dict", "meta_param_recorder_class"}
    value = _object(word, value, known)
    frequency = _frequency("summary_frequency", value, "5000t")
    _no_directory(word, value, f"metrics go to the run's own folder, as often as the experiment's {frequency} says")
    return frequency


def _execution(word: str, value: Any) -> str:
    value = {"type": value} if isinstance(value, str) else value
    value = _object(word, value, {"type", "session_config", "distributed_spec"})
    if value.get("type") not in (None, "single"):
        raise TranslationError(_refusal(word, _SPREAD), word, "type")
    for name in ("session_config", "distributed_spec"):
        if value.get(name) is not None:
            raise TranslationError(_refusal(f"{word}.{name}", _REFUSED[name]), word, name)
    return "run_mode"


def _object(word: str, value: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TranslationError(f'"{word}" must be an object; it may be left out', word)
    if unknown := sorted(set(value) - known):
        way_out = did_you_mean(unknown[0], known) or "; it may be left out"
        raise TranslationError(f'"{word}" has no "{unknown[0]}"{way_out}', word, unknown[0])
    return value


def _frequency(field: str, value: dict[str, Any], usual: str) -> str:
    """`saver_frequency ("600s")`."""
    for name, unit in (("seconds", "s"), ("steps", "t")):
        if isinstance(value.get(name), int | float):
            return f'{field} ("{value[name]:g}{unit}")'
    return f'{field} ("{usual}")'


def _no_directory(word: str, value: dict[str, Any], reason: str) -> None:
    for name in ("directory", "file"):
        if value.get(name) is not None:
            raise TranslationError(_refusal(f"{word}.{name}", reason), word, name)


def _listed(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _refusal(word: str, reason: str) -> str:
    return f'"{word}" has no meaning here: {reason}'


def _harmless(field: str = "") -> Callable[[str, Any], str]:
    return lambda word, value: field


def _refused(reason: str, harmless: Any = None) -> Callable[[str, Any], None]:
    def judge(word: str, value: Any) -> None:
        if value is not harmless:
            raise TranslationError(_refusal(word, reason), word)

    return judge


_NETWORK = "the network is a field of the experiment, beside the agent"
_SPREAD = "how the work is spread is the experiment's run_mode; leave it out"
_REFUSED = {
    "session_config": "there is no TensorFlow session to be set up; leave it out",
    "distributed_spec": _SPREAD,
}
_STATES = "the environment says what its states are; leave it out"
_ACTIONS = "the environment says what its actions are; leave it out"
JUDGES: dict[str, Callable[[str, Any], str | None]] = {
    "execution": _execution,
    "saver": _saver,
    "saver_spec": _saver,
    "summarizer": _summarizer,
    "summary_spec": _summarizer,
    "log_level": _harmless("debug_logging"),
    "batched_observe": _harmless(),
    "batching_capacity": _harmless(),
    "scope": _harmless(),
    "ls_unroll_loop": _harmless(),
    "cg_unroll_loop": _harmless(),
    "unroll_loop": _harmless(),
    "keep_last_timestep": lambda word, value: _kept(word, value),
    "device": _refused("JAX chooses the device; set the environment variable JAX_PLATFORMS instead"),
    "session_config": _refused(_REFUSED["session_config"]),
    "tf_session_config": _refused(_REFUSED["session_config"]),
    "distributed": _refused(_SPREAD, harmless=False),
    "distributed_spec": _refused(_SPREAD),
    "normalize_rewards": _refused(
        'write "reward_preprocessing": {"type": "standardize", "across_batch": true} for rollouts, or '
        '"reward_preprocessing": "running_standardize"',
        harmless=False,
    ),
    "network": _refused(_NETWORK),
    "network_spec": _refused(_NETWORK),
    "states": _refused(_STATES),
    "states_spec": _refused(_STATES),
    "actions": _refused(_ACTIONS),
    "actions_spec": _refused(_ACTIONS),
}
"""Each returns the experiment's field with the same meaning, "" if there is none, or None if no notice is needed."""


def _kept(word: str, value: Any) -> str:
    if value is not True:
        raise TranslationError(
            _refusal(word, "every timestep is learned from, the last of each batch too; leave it out"), word
        )
    return ""
