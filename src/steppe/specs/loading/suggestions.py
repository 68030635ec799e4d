"""Suggestions for unknown words."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

OTHER_LIBRARIES = {
    "lr": "learning_rate",
    "step_size": "learning_rate",
    "gamma": "discount",
    "lambda": "gae_lambda",
    "gae": "gae_lambda",
    "ent_coef": "entropy_coefficient",
    "vf_coef": "value_coefficient",
    "clip_range": "clip",
    "clip_coef": "clip",
    "n_steps": "horizon",
    "n_epochs": "epochs",
    "update_epochs": "epochs",
    "num_minibatches": "minibatches",
    "max_grad_norm": "max_gradient_norm",
}
"""Names of settings in other libraries -> their names here."""
OF_AGENTS = (
    *OTHER_LIBRARIES.values(),
    "batch_size",
    "learning_rate_decay",
    "optimizer",
    "memory",
    "exploration",
    "n_step",
)
"""Settings of agents that users write among the fields of an experiment."""


def misplaced(word: str, fields: Collection[str]) -> str:
    """Like `did_you_mean`, for another library's name of a setting or a setting of the agent; "" for other words."""
    ours = OTHER_LIBRARIES.get(word, word)
    if ours in fields:
        return f'; did you mean "{ours}"?'
    return f'; did you mean "agent.{ours}"?' if "agent" in fields and ours in OF_AGENTS else ""


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like `word`, ignoring case and separators; None if none is close."""
    by_fold = {_fold(choice): choice for choice in choices}
    matches = difflib.get_close_matches(_fold(word), by_fold, n=1, cutoff=0.65)
    if not matches and len(word) > 2:
        matches = [fold for fold in by_fold if fold.startswith(_fold(word))]
    return by_fold[matches[0]] if matches else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The end of an error: `; did you mean "ppo"?`, or "" if no choice is close."""
    choice = nearest(word, choices)
    return f'; did you mean "{choice}"?' if choice is not None else ""


def quoted(words: Iterable[str]) -> str:
    """The words as people list them: `"a", "b" or "c"`."""
    *others, last = [f'"{word}"' for word in words]
    return f"{', '.join(others)} or {last}" if others else last


def _fold(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_")
