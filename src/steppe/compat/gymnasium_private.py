"""Private attributes of gymnasium, as of version 1.4.0."""

from __future__ import annotations

from typing import Any


def time_limit_of(wrapper: Any) -> int:
    """The limit of a `TimeLimit` wrapper: its public `spec` has it only for registered environments."""
    return wrapper._max_episode_steps


def is_seeded(env: Any) -> bool:
    """Whether `reset` has seeded `env.np_random`: reading that property would create a generator."""
    return getattr(env.unwrapped, "_np_random", None) is not None
