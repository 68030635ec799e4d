"""Steps Atari games at random, without an agent, for atari_frames.py; prints the costs a frame as one line of JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import numpy as np

from window import Window

GAME, ENVS, FRAMES = "Breakout", 8, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["steppe", "ale"])
    parser.add_argument("--steps", type=int, required=True, help="steps of every environment")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()

    version, step = (steppe_envs if arguments.library == "steppe" else ale_envs)(arguments.seed)
    actions = np.random.default_rng(arguments.seed).integers(0, 4, (arguments.steps, ENVS))
    warm_up = arguments.steps // 10
    window = Window(warm_up * ENVS * FRAMES)
    for number, chosen in enumerate(actions):
        # Two marks would be enough, but one at each hundredth step costs nothing.
        if number % 100 == 0 or number == warm_up:
            window.mark(number * ENVS * FRAMES)
        step(chosen)
    window.mark(len(actions) * ENVS * FRAMES)
    costs = window.costs()
    print(json.dumps({"version": version, **costs, "frames_per_second": costs["steps_per_second"]}))


def steppe_envs(seed: int) -> tuple[str, Callable]:
    import steppe
    from steppe.envs.gymnasium.vector import GymnasiumEnvs
    from steppe.specs.environment import EnvironmentSpec

    envs = GymnasiumEnvs(EnvironmentSpec(id=f"ALE/{GAME}-v5"), ENVS)
    envs.reset(seed)
    return steppe.__version__, envs.step


def ale_envs(seed: int) -> tuple[str, Callable]:
    import ale_py
    from ale_py.vector_env import AtariVectorEnv

    # Steppe's defaults, as far as ale-py has the settings.
    envs = AtariVectorEnv(GAME.lower(), ENVS, repeat_action_probability=0.25, life_loss_info=True)
    envs.reset(seed=seed)
    return ale_py.__version__, envs.step


if __name__ == "__main__":
    main()
