"""From an experiment's spec to the engine that trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steppe.agents import agent_class, make
from steppe.envs.registry import has_twin, make_jax
from steppe.errors import UserError
from steppe.runners.compilation import prepare_jax, shards_for
from steppe.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    from steppe.envs.host import HostEnvs
    from steppe.runners._base import Engine
    from steppe.specs.spaces import Space

DEFAULT_EPISODE_LIMIT = 1000
"""Timesteps after which an episode is cut where neither the experiment nor the environment says when."""


def notices_for(spec: ExperimentSpec) -> list[str]:
    """What a user should know of settings that have no effect here."""
    notices = []
    if spec.run_mode == "single":
        defaults = {name: type(spec).model_fields[name].default for name in ("num_workers", "num_parameter_servers")}
        notices += [
            f'{name} has no effect in run mode "single", which has one worker'
            for name, default in defaults.items()
            if getattr(spec, name) != default
        ]
    if spec.deterministic:
        notices.append("deterministic is on: the agent acts without exploring while it learns")
    return notices


def is_compiled(spec: ExperimentSpec) -> bool:
    """Whether the environment runs as a compiled twin."""
    environment = spec.environment
    return environment.backend == "compiled" or (environment.backend == "auto" and has_twin(environment.id))


def num_envs_of(spec: ExperimentSpec) -> int:
    """As the experiment says, else as suits the agent."""
    return spec.num_envs or agent_class(spec.agent).default_num_envs


def make_engine(spec: ExperimentSpec, shards: int | None = None) -> Engine:
    """Environments, agent and engine; everything that can be wrong with a spec is found here."""
    _check_run_mode(spec)
    compiled = is_compiled(spec)
    num_envs = num_envs_of(spec)
    can_spread = compiled and agent_class(spec.agent).experience == "trajectories"
    shards = prepare_jax((shards or shards_for(num_envs)) if can_spread else 1)
    if num_envs % shards:
        shards = 1
    if compiled:
        return _compiled_engine(spec, num_envs, shards)
    return _host_engine(spec, num_envs)


def _compiled_engine(spec: ExperimentSpec, num_envs: int, shards: int) -> Engine:
    from steppe.runners.compiled import CompiledEngine

    env = make_jax(spec.environment)
    agent = _agent(spec, env.observation_space, env.action_space, num_envs, shards)
    limit = spec.max_timesteps_per_episode
    if limit is None and env.max_episode_steps is None:
        limit = DEFAULT_EPISODE_LIMIT
    return CompiledEngine(agent, env, spec.repeat_actions, limit)


def _host_engine(spec: ExperimentSpec, num_envs: int) -> Engine:
    from steppe.envs.host import HostEnvs
    from steppe.runners.host import HostEngine

    limit = spec.max_timesteps_per_episode
    envs: HostEnvs = HostEnvs(spec.environment, num_envs, limit, spec.repeat_actions)
    if limit is None and envs.max_episode_steps is None:
        envs.close()
        limit = DEFAULT_EPISODE_LIMIT
        envs = HostEnvs(spec.environment, num_envs, limit, spec.repeat_actions)
    try:
        agent = _agent(spec, envs.observation_space, envs.action_space, num_envs, 1)
        return HostEngine(agent, envs, spec.environment, spec.repeat_actions, limit)
    except BaseException:
        envs.close()
        raise


def _agent(spec: ExperimentSpec, observation: Space, action: Space, num_envs: int, shards: int) -> Any:
    from steppe.agents._base import Situation

    return make(
        spec.agent,
        Situation(
            observation=observation,
            action=action,
            network=spec.network,
            num_envs=num_envs,
            environment=spec.environment.id,
            total_timesteps=spec.limits[1],
            deterministic=spec.deterministic,
            normalize_observations=spec.environment.normalize_observations,
            normalize_rewards=spec.environment.normalize_rewards,
            shards=shards,
        ),
    )


def _check_run_mode(spec: ExperimentSpec) -> None:
    if spec.run_mode != "single":
        raise UserError(f'run mode "{spec.run_mode}" is not part of this version of Steppe; use run mode "single"')
