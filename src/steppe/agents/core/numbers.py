"""Numeric hyper-parameters as arguments of compiled programs, so that other values compile nothing again.

Settings that decide a shape or the program itself stay constants: counts, flags, layers, a number in place of null, and
the numbers of `STATIC`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

STATIC = {
    "subsampling_fraction": "it decides the size of batches",
    "demo_sampling_ratio": "it decides the size of batches",
    "variable_noise": "0 adds no noise at all",
    "initial_log_std": "only fresh parameters depend on it",
    "initial_temperature": "only fresh parameters depend on it",
    "temperature": "it may be learned instead",
    "target_entropy": "it may follow from the actions instead",
    "huber": "it may be a flag",
    "mu": "noise begins with it on the host",
    "sigma": "XLA folds it into the normal numbers' root of two, which rounds otherwise if it is an argument",
    "priority_exponent": "a power of an argument is rounded otherwise than one of a constant",
    "importance_exponent": "a power of an argument is rounded otherwise than one of a constant",
    "final_importance_exponent": "a power of an argument is rounded otherwise than one of a constant",
    "cg_damping": "the optimizer of trpo is made with it",
    "ls_accept_ratio": "the optimizer of trpo is made with it",
}
"""Numbers that stay constants of a program, and why."""
GROUPS = ("exploration", "drifting_noise", "memory")
"""Settings that are groups of settings with numbers in them."""
M = TypeVar("M", bound=BaseModel)


def numbers_of(settings: BaseModel) -> dict[str, Any]:
    """The numbers of some settings by name; those of a group are a nested dict."""
    found: dict[str, Any] = {}
    for name, value in settings:
        if name in GROUPS and isinstance(value, BaseModel):
            found[name] = numbers_of(value)
        elif type(value) is float and name not in STATIC:
            found[name] = value
    if found.get("learning_rate") is not None and dict(settings)["learning_rate_decay"] == "exponential":
        # optax checks in Python whether the rate rises or falls.
        del found["learning_rate"], found["final_learning_rate"]
    return found


def with_numbers(settings: M, numbers: dict[str, Any]) -> M:
    """The same settings with other numbers, which may be traced."""
    present = dict(settings)
    changes = {
        name: with_numbers(present[name], value) if isinstance(value, dict) else value
        for name, value in numbers.items()
    }
    return settings.model_copy(update=changes)
