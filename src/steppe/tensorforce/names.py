"""Names of agents in TensorForce, and today's."""

from __future__ import annotations

from typing import Any

_ONE_WORD = {"dqnnstep": "dqn_nstep", "qrdqn": "qr_dqn"}
_STAND_INS = {
    "acktr": (
        "trpo",
        'agent "acktr" of TensorForce is trained as "trpo": natural gradients are found by conjugate gradients in '
        "place of Kronecker factors",
    ),
}
"""TensorForce's agents that do not exist here -> the agent that replaces each, and the sentence that says so."""


def present_name(word: str) -> str:
    """`"ppo"` for `"ppo_agent"`, `"PPOAgent"` and `"tensorforce.agents.PPOAgent"`."""
    name, is_old = _bare(word)
    return _STAND_INS[name][0] if is_old and name in _STAND_INS else name or word


def stand_in_notice(written: Any) -> str | None:
    """The notice for the user if another agent replaces the one that was written."""
    name, is_old = _bare(written) if isinstance(written, str) else ("", False)
    return _STAND_INS[name][1] if is_old and name in _STAND_INS else None


def replaced_by(name: str) -> list[str]:
    """TensorForce's agents that this one replaces."""
    return [old for old, (new, _) in _STAND_INS.items() if new == name]


def is_tensorforces(word: str) -> bool:
    """Whether an agent's name has a spelling that only TensorForce had: registered as "ppo_agent", or its class."""
    return word.startswith("tensorforce.") or word.endswith(("_agent", "-agent", "Agent"))


def _bare(word: str) -> tuple[str, bool]:
    """The name without the word agent, and whether it was spelled as in TensorForce."""
    name = word.rpartition(".")[2] if word.startswith("tensorforce.") else word
    if name.endswith("Agent"):
        name = name.removesuffix("Agent").lower()
    name = name.replace("-", "_").removesuffix("_agent")
    return _ONE_WORD.get(name, name), is_tensorforces(word)
