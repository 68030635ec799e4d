"""What a limit of timesteps comes to in an environment whose episodes end sooner by themselves."""

from __future__ import annotations

from steppe.envs.registry import plays_atari
from steppe.specs.environment import EnvironmentSpec


def notices_of_limit(spec: EnvironmentSpec, asked: int | None, holds: int | None) -> tuple[str, ...]:
    """A sentence if episodes end after `holds` timesteps although `asked` for more, with the setting that allows more.

    A longer episode is another task with other returns, so only the environment's own settings make it so.
    """
    if asked is None or holds is None or holds >= asked:
        return ()
    if spec.id == "remote":
        way_out = "where it is served its settings can make them longer"
    elif plays_atari(spec):
        way_out = 'a larger "max_frames" in its settings makes them longer'
    elif ":" in spec.id:
        way_out = "only the code that makes it can make them longer"
    else:
        name = "max_steps" if spec.id.startswith("MiniGrid") else "max_episode_steps"
        way_out = f'"{name}": {asked} in its settings (environment.settings) makes them longer'
    return (
        f"max_timesteps_per_episode {asked:,} has no effect: episodes of {spec.id} end after {holds:,} timesteps by "
        f"themselves; {way_out}",
    )
