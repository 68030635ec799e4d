"""How long rollouts are: by timesteps of each environment, of all together, or by episodes."""

from __future__ import annotations

from steppe.agents._base import AgentContext
from steppe.agents.core.actor_critic_settings import ActorCriticSettings
from steppe.errors import UserError

MULTIPLE = 32
"""What rollouts of episodes have room for is a multiple of this, so that it can be cut into minibatches."""


def horizon_of(settings: ActorCriticSettings, context: AgentContext) -> int:
    """The most timesteps of each environment: as set, or so that the episodes asked for surely fit."""
    envs, total, episodes = context.num_envs, settings.rollout_timesteps, settings.rollout_episodes
    if episodes is None:
        return settings.horizon if total is None else -(-total // envs)
    if total is not None:
        horizon = -(-total // envs)
    elif context.episode_limit is not None:
        horizon = -(-episodes // envs) * context.episode_limit
    else:
        raise UserError(
            "rollout_episodes (update_mode in episodes) needs to know how long an episode can be; set "
            "max_timesteps_per_episode, or give rollout_timesteps (memory.capacity), the most to learn from at once"
        )
    return _rounded(horizon)


def horizon_of_sequences(episodes: int, horizon: int, context: AgentContext) -> int:
    """The horizon for recurrent networks, which has room for as many whole episodes as are asked for.

    A rollout that is repeated begins with nothing remembered, so it must begin where an episode does. A file for
    TensorForce gives the capacity of a memory, which may be less; it is raised.
    """
    if context.num_envs > 1:
        raise UserError(
            f"a recurrent network learns from whole sequences, and {context.num_envs} environments do not end "
            "their episodes together; with rollout_episodes (update_mode in episodes) set num_envs to 1"
        )
    if context.episode_limit is not None and context.is_for_tensorforce:
        return max(horizon, _rounded(episodes * context.episode_limit))
    if context.episode_limit is None or horizon < episodes * context.episode_limit:
        raise UserError(
            f"a recurrent network learns from whole sequences, and {horizon} timesteps at once may be too few for "
            f"{episodes} episodes; raise rollout_timesteps (memory.capacity) or leave it out, or lower "
            "max_timesteps_per_episode"
        )
    return horizon


def _rounded(timesteps: int) -> int:
    return -(-timesteps // MULTIPLE) * MULTIPLE
