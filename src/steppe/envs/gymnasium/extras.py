"""Which of Steppe's extras brings a package that an environment missed: gymnasium's own advice names its extras."""

from __future__ import annotations

import re

import gymnasium

from steppe.specs.user_code import GYMNASIUM_EXTRA, STEPPE_EXTRAS

_MODULES = {"pygame": "video", "mujoco": "mujoco", "Box2D": "box2d", "ale_py": "atari", "minigrid": "minigrid"}
"""The extra for each module that an environment may import late, while it is drawn or reset."""


def extra_for(error: BaseException) -> str | None:
    """The extra that brings what `error` says is missing; None if Steppe has none for it, or nothing is missing."""
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        named = re.search(GYMNASIUM_EXTRA, str(error))
        return None if named is None else STEPPE_EXTRAS.get(named[1].replace("-", "_"))
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return _MODULES.get(error.name.partition(".")[0])
    return None
