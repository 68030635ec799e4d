"""Builds the engine that trains an experiment."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from steppe import agents
from steppe.agents import agent_class, make
from steppe.envs.registry import (
    DEFAULT_EPISODE_LIMIT,
    has_compiled,
    make_compiled,
    notices_of_limit,
    only_runs_compiled,
    plays_atari,
)
from steppe.errors import UserError
from steppe.runners.compilation import prepare_jax, shards_for
from steppe.runners.ignored_fields import ignored_fields
from steppe.specs.environment import IN_PROCESS
from steppe.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    from steppe.agents._base import AgentContext
    from steppe.envs._base import CompiledEnv
    from steppe.policies.preprocessing import Preprocessing
    from steppe.runners._base import Engine
    from steppe.specs.environment import EnvironmentSpec
    from steppe.specs.spaces import Space

PARALLEL = {
    "multi-threaded": "steppe.runners.engines.threads",
    "distributed": "steppe.runners.engines.distributed",
    "async": "steppe.runners.engines.asynchronous",
}
"""Run mode -> the package whose `make_engine` and `checked_engine` are those of the mode."""


def notices_for(spec: ExperimentSpec) -> list[str]:
    """Notices of settings that have no effect in this experiment."""
    notices = [
        *spec.notices,
        *_unused_cluster(spec),
        *agents.notices(spec, num_envs_of(spec)),
        *ignored_fields(spec),
    ]
    if _could_be_compiled(spec.environment) and not is_compiled(spec):
        notices.append(
            f'vectorization "{spec.environment.vectorization}" steps gymnasium\'s {spec.environment.id}; leave it out '
            "for the compiled twin, which is many times faster"
        )
    elif spec.environment.backend == "auto" and is_compiled(spec) and _counts_episodes(spec):
        notices.append(
            f"rollout_episodes (update_mode in episodes) steps gymnasium's {spec.environment.id}; give "
            "rollout_timesteps for the compiled twin, which is many times faster"
        )
    notices += _too_short_to_learn(spec)
    if spec.deterministic:
        notices.append("deterministic is on: the agent acts without exploring while it learns")
    return list(dict.fromkeys(notices))


def _unused_cluster(spec: ExperimentSpec) -> list[str]:
    """A notice if the experiment describes a cluster that it does not use; files of the old tfcli always name one."""
    if spec.cluster is None or spec.platform == "kubernetes":
        return []
    named = f'cluster "{spec.cluster.name}"' if spec.cluster.name is not None else "a cluster"
    return [
        f'{named} is described, and only platform "kubernetes" trains there (--platform kubernetes, or "steppe '
        f'experiment start -e NAME --set platform=kubernetes"); platform "{spec.platform}" trains without it'
    ]


def _too_short_to_learn(spec: ExperimentSpec) -> list[str]:
    """A notice if the run ends before an agent with a replay memory begins to learn."""
    settings: Any = spec.agent.settings_as(agent_class(spec.agent).Settings)
    total, waits = spec.limits[1], settings.timesteps_before_learning
    if total is None or not waits:
        return []
    num_envs = num_envs_of(spec)
    iteration = settings.horizon_for(num_envs) * num_envs
    if -(-total // iteration) * iteration >= waits:
        return []
    return [
        f"nothing will be learned: the run ends at {total:,} timesteps, and the first update comes at learning_starts, "
        f"{settings.learning_starts:,}; give a smaller agent.learning_starts, or more total_timesteps"
    ]


def is_compiled(spec: ExperimentSpec) -> bool:
    """Whether the environment is the compiled one."""
    environment = spec.environment
    return environment.backend == "compiled" or (
        _could_be_compiled(environment) and environment.vectorization == "auto"
    )


def runs_compiled(spec: ExperimentSpec) -> bool:
    """Whether the whole loop is compiled, which is impossible if rollouts are counted in episodes."""
    return is_compiled(spec) and not _counts_episodes(spec)


def _could_be_compiled(environment: EnvironmentSpec) -> bool:
    return environment.backend == "auto" and has_compiled(environment.id)


def num_envs_of(spec: ExperimentSpec) -> int:
    """The experiment's num_envs, or the agent's default for this kind of environment."""
    return spec.num_envs or spec.agent.defaults.num_envs or agent_class(spec.agent).default_num_envs


def check_object(spec: ExperimentSpec) -> None:
    """Refuses environment objects of this process if other processes make environments, and an instance if several are
    needed."""
    environment = spec.environment
    if not any(id.startswith(IN_PROCESS) for id in (environment.id, *(each["type"] for each in environment.wrappers))):
        return
    from steppe.envs.gymnasium.in_process import check_kind_of_run

    mode, vectorization, num_envs = spec.run_mode, environment.vectorization, num_envs_of(spec)
    by_name = {
        f'run mode "{mode}"': mode in ("distributed", "async"),
        f'platform "{spec.platform}"': spec.platform != "local",
        f'vectorization "{vectorization}"': vectorization not in ("auto", "sync"),
    }
    several = {
        f'run mode "{mode}"': mode != "single",
        f"num_envs={num_envs}": num_envs > 1,
        "an evaluation during training": spec.evaluation is not None,
    }
    needs_name, needs_several = (
        next((what for what, is_so in reasons.items() if is_so), None) for reasons in (by_name, several)
    )
    check_kind_of_run(environment, needs_name, needs_several)


def shards_of(spec: ExperimentSpec, cores: int | None = None) -> int:
    """The best number of host devices for the environments; one if the agent or the environment cannot be spread."""
    if not _can_spread(spec):
        return 1
    if runs_compiled(spec):
        return shards_for(num_envs_of(spec), cores)
    from steppe.runners.large_updates import devices_for

    return devices_for(spec, cores)


def xla_threads_of(spec: ExperimentSpec, cores: int | None = None) -> int:
    """The number of XLA's threads that share the products of an update; one for agents without a replay memory."""
    if agent_class(spec.agent).experience != "transitions":
        return 1
    from steppe.runners.large_updates import threads_for

    return threads_for(spec, cores)


def _can_spread(spec: ExperimentSpec) -> bool:
    return agent_class(spec.agent).experience == "trajectories"


def make_engine(spec: ExperimentSpec, shards: int | None = None, xla_threads: int | None = None) -> Engine:
    """Builds environments, agent and engine, and finds every mistake in the spec.

    `shards` and `xla_threads` are the numbers of host devices and of threads that share a product, as in a checkpoint;
    None chooses them for this machine.
    """
    check_object(spec)
    if spec.run_mode != "single":
        return import_module(PARALLEL[spec.run_mode]).make_engine(spec)
    compiled, num_envs = runs_compiled(spec), num_envs_of(spec)
    shards = prepare_jax((shards or shards_of(spec)) if _can_spread(spec) else 1, xla_threads or xla_threads_of(spec))
    if num_envs % shards:
        shards = 1
    if compiled:
        return _compiled_engine(spec, num_envs, shards)
    return _host_engine(spec, num_envs, shards)


def checked_engine(
    spec: ExperimentSpec, shards: int | None = None, xla_threads: int | None = None
) -> tuple[Engine, list[str]]:
    """`make_engine` after refusing everything that would fail later; returns the notices of the run mode too."""
    check_object(spec)
    if spec.run_mode != "single":
        return import_module(PARALLEL[spec.run_mode]).checked_engine(spec)
    return make_engine(spec, shards, xla_threads), []


def _compiled_engine(spec: ExperimentSpec, num_envs: int, shards: int) -> Engine:
    from steppe.runners.engines.compiled.engine import CompiledEngine

    env: CompiledEnv = make_compiled(spec.environment)
    if spec.repeat_actions > 1:
        from steppe.envs.compiled.repeated import Repeated

        env = Repeated(inner=env, times=spec.repeat_actions, max_episode_steps=env.max_episode_steps)
    preprocessing = preprocessing_of(spec, env.observation_space)
    if preprocessing is not None:
        from steppe.runners.engines.compiled.preprocessed_env import PreprocessedJaxEnv

        env = PreprocessedJaxEnv(inner=env, preprocessing=preprocessing, max_episode_steps=env.max_episode_steps)
    agent = make_agent(spec, env, num_envs, shards, preprocessing)
    limit = spec.max_timesteps_per_episode
    if limit is None and env.max_episode_steps is None:
        limit = DEFAULT_EPISODE_LIMIT
    engine = CompiledEngine(agent, env, limit)
    engine.notices = notices_of_limit(spec.environment, limit, env.max_episode_steps)
    return engine


def _host_engine(spec: ExperimentSpec, num_envs: int, shards: int) -> Engine:
    from steppe.envs.gymnasium.vector import GymnasiumEnvs
    from steppe.runners.engines.host.engine import HostEngine

    limit = spec.max_timesteps_per_episode
    envs: Any = GymnasiumEnvs(spec.environment, num_envs, limit, spec.repeat_actions)
    try:
        if limit is None and envs.max_episode_steps is None:
            limit = DEFAULT_EPISODE_LIMIT
            envs.play_by(limit, spec.repeat_actions)
        preprocessing = preprocessing_of(spec, envs.observation_space)
        if preprocessing is not None:
            from steppe.runners.engines.compiled.preprocessed_env import PreprocessedHostEnvs

            envs = PreprocessedHostEnvs(envs, preprocessing)
        agent = make_agent(spec, envs, num_envs, shards, preprocessing)
        return HostEngine(agent, envs, spec.environment, spec.repeat_actions, limit)
    except BaseException:
        envs.close()
        raise


def preprocessing_of(spec: ExperimentSpec, observation: Space) -> Preprocessing | None:
    """The preprocessing of observations of this space, from the agent's settings."""
    stages = spec.agent.settings_as(agent_class(spec.agent).Settings).states_preprocessing
    if stages is None:
        return None
    from steppe.policies.preprocessing import Preprocessing

    if plays_atari(spec.environment):
        raise UserError(
            f"{spec.environment.id} is preprocessed by its own settings (84 x 84, grey, 4 frames); leave out "
            'agent.states_preprocessing, or write "backend": "gymnasium" in the environment for whole frames'
        )
    return Preprocessing(stages, observation)


def _counts_episodes(spec: ExperimentSpec) -> bool:
    """Whether rollouts are counted in episodes, so that their length is not known in advance, as a compiled loop needs
    it."""
    if not spec.agent.settings_as(agent_class(spec.agent).Settings).counts_episodes:
        return False
    if spec.environment.backend == "compiled":
        raise UserError(
            "rollout_episodes (update_mode in episodes) ends rollouts at any timestep, which a compiled environment "
            'cannot; leave out "backend": "compiled", or give rollout_timesteps'
        )
    if only_runs_compiled(spec.environment):
        raise UserError(
            "rollout_episodes (update_mode in episodes) ends rollouts at any timestep, which a compiled environment "
            f"cannot, and {spec.environment.id} only runs compiled; give rollout_timesteps"
        )
    return True


def make_agent(spec: ExperimentSpec, envs: Any, num_envs: int, shards: int, preprocessing: Preprocessing | None) -> Any:
    """The agent for environments with preprocessed observations."""
    return make(spec.agent, situation_of(spec, envs, num_envs, shards, preprocessing))


def situation_of(
    spec: ExperimentSpec, envs: Any, num_envs: int, shards: int, preprocessing: Preprocessing | None
) -> AgentContext:
    """The context of the experiment's agent for these environments."""
    from steppe.agents._base import AgentContext

    rewards = spec.agent.settings_as(agent_class(spec.agent).Settings).reward_preprocessing
    normalizes_rewards = rewards is not None and any(stage.type == "running_standardize" for stage in rewards.root)
    return AgentContext(
        observation=envs.observation_space,
        action=envs.action_space,
        preprocessing=preprocessing,
        network=spec.network,
        num_envs=num_envs,
        environment=spec.environment.id,
        total_timesteps=spec.limits[1],
        deterministic=spec.deterministic,
        normalize_observations=spec.environment.normalize_observations
        or (preprocessing is not None and preprocessing.normalizes),
        normalize_rewards=spec.environment.normalize_rewards or normalizes_rewards,
        shards=shards,
        episode_limit=min(
            (limit for limit in (spec.max_timesteps_per_episode, envs.max_episode_steps) if limit), default=None
        ),
        stacked_frames=_stacked_frames(spec, preprocessing),
        is_for_tensorforce=spec.agent.is_for_tensorforce,
    )


def _stacked_frames(spec: ExperimentSpec, preprocessing: Preprocessing | None) -> tuple[int, int] | None:
    """(number of frames, their axis) if an observation is a stack of frames."""
    if preprocessing is not None:
        return preprocessing.stacked_frames
    if not plays_atari(spec.environment):
        return None
    from steppe.envs.gymnasium.atari import settings_of

    settings = settings_of(spec.environment)
    return settings.frame_stack, 0 if settings.grayscale else -1
