"""Run mode async: one learner, and any number of workers that act with its newest policy. Importing this is light."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from steppe.errors import MissingEnvironment, MissingExtra, UserError
from steppe.runners.pods import CREW_FILE_VARIABLE
from steppe.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    from steppe.runners._base import Engine
    from steppe.runners.engines.asynchronous.cores.uniform import UniformReplay
    from steppe.runners.engines.asynchronous.learner.async_learner import AsyncLearner
    from steppe.runners.engines.asynchronous.worker.async_worker import AsyncWorker
    from steppe.runners.play.episodes import EpisodeRules
    from steppe.specs.spaces import Space

__all__ = ["AsyncLearner", "AsyncWorker", "UniformReplay", "checked_engine", "make_engine"]

# Imported lazily, by name: a worker must not import the modules that only a learner needs.
_HOMES = {
    "AsyncLearner": "learner.async_learner",
    "AsyncWorker": "worker.async_worker",
    "UniformReplay": "cores.uniform",
}
SLOW = {"conv1d", "conv2d", "pool2d", "custom"}
"""Layers that are slow in NumPy, which workers act with."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def checked_engine(spec: ExperimentSpec) -> tuple[Engine, list[str]]:
    """The engine, with notices of settings without effect; a UserError if the experiment cannot run in this mode."""
    from steppe.agents import agent_class
    from steppe.runners.engines.asynchronous.wire.access import access_from

    _check_packages(spec)
    _check_environment(spec)
    _check_address(spec)
    options, algorithm = spec.asynchronous, agent_class(spec.agent)
    access_from(options.token_file, options.tls_cert, options.tls_key)
    engine = make_engine(spec)
    notices = []
    if spec.num_parameter_servers != ExperimentSpec.model_fields["num_parameter_servers"].default:
        notices.append('num_parameter_servers has no effect in run mode "async", which has one learner')
    if engine.agent.perturbs_parameters and options.evaluation_share:
        notices.append(
            "workers play no greedy episodes, since the noise of this agent is in the parameters that they get; for "
            "evaluations give `evaluation`"
        )
    for name, experience in (("trajectories_per_update", "trajectories"), ("update_to_data", "transitions")):
        if getattr(options, name) is not None and algorithm.experience != experience:
            notices.append(f'asynchronous.{name} has no effect with agent "{algorithm.type}", which learns otherwise')
    if options.batch_timesteps is not None and algorithm.experience == "trajectories":
        notices.append(
            f'asynchronous.batch_timesteps has no effect with agent "{algorithm.type}", whose workers send '
            "trajectories of agent.horizon timesteps"
        )
    if spec.network is not None and {layer.type for layer in spec.network.root} & SLOW:
        notices.append("workers act in NumPy, without JAX, where convolutions and layers of your own take long")
    return engine, notices


def make_engine(spec: ExperimentSpec) -> Engine:
    """Builds the learner with its agent; `begin` opens its port and starts its workers."""
    _check_packages(spec)
    _check_environment(spec)
    from steppe.runners.compilation import prepare_jax
    from steppe.runners.engines.asynchronous.learner.core_factory import check_agent, make_core
    from steppe.runners.engines.asynchronous.learner.engine import AsyncEngine
    from steppe.runners.engines.asynchronous.learner.pod_pool import PodWorkerPool, in_pods
    from steppe.runners.engines.asynchronous.learner.worker_pool import RayWorkerPool
    from steppe.runners.engines.asynchronous.learner.worker_server import server_opener
    from steppe.runners.setup import num_envs_of, xla_threads_of

    prepare_jax(xla_threads=xla_threads_of(spec))
    check_agent(spec)
    try:
        rules, spaces, limit, notices = _explored(spec)
    except MissingEnvironment as error:
        if CREW_FILE_VARIABLE not in os.environ:
            raise
        from steppe.runners.engines.asynchronous.learner.deferred_spaces import engine_with_deferred_spaces

        return engine_with_deferred_spaces(spec, error)
    core = make_core(spec, spaces, limit)
    num_envs = num_envs_of(spec)
    if spec.platform == "kubernetes":
        opens = server_opener(in_pods(spec.asynchronous))
        engine = AsyncEngine(core, opens, PodWorkerPool(spec, rules, num_envs), rules, num_envs)
    else:
        engine = AsyncEngine(
            core, server_opener(spec.asynchronous), RayWorkerPool(spec, rules, num_envs), rules, num_envs
        )
    engine.notices = notices
    return engine


def _explored(spec: ExperimentSpec) -> tuple[EpisodeRules, tuple[Space, Space], int | None, tuple[str, ...]]:
    """Inspects the environment: (episode rules, spaces, time limit, notices)."""
    from steppe.envs.gymnasium.vector import GymnasiumEnvs
    from steppe.envs.registry import DEFAULT_EPISODE_LIMIT
    from steppe.runners.play.episodes import EpisodeRules

    limit = spec.max_timesteps_per_episode
    with GymnasiumEnvs(spec.environment, 1, limit, spec.repeat_actions) as envs:
        if limit is None and envs.max_episode_steps is None:
            limit = DEFAULT_EPISODE_LIMIT
        rules = EpisodeRules(spec.environment, limit, spec.repeat_actions)
        spaces = envs.observation_space, envs.action_space
        return rules, spaces, envs.max_episode_steps or limit, envs.notices


def _check_packages(spec: ExperimentSpec) -> None:
    needs_ray = spec.platform != "kubernetes"
    if (needs_ray and find_spec("ray") is None) or find_spec("msgpack") is None:
        raise MissingExtra('run mode "async"', "cluster")


def _check_environment(spec: ExperimentSpec) -> None:
    """Refuses compiled environments: workers have no JAX and step the gymnasium original."""
    if spec.environment.backend == "compiled":
        raise UserError(
            'workers of run mode "async" step gymnasium environments, without JAX; leave out "backend": "compiled", or '
            'use run mode "multi-threaded"'
        )
    import gymnasium

    from steppe.envs.registry import has_compiled

    if has_compiled(spec.environment.id) and spec.environment.id not in gymnasium.registry:
        raise UserError(
            f'environment "{spec.environment.id}" is Steppe\'s own and only runs compiled, which workers of run mode '
            '"async" cannot, having no JAX; use run mode "single" or "multi-threaded"'
        )


def _check_address(spec: ExperimentSpec) -> None:
    from steppe.net.credentials import read_token
    from steppe.net.sockets import is_loopback
    from steppe.runners.engines.asynchronous.wire.protocol import TOKEN_VARIABLE
    from steppe.specs.running.connections import split_address

    options = spec.asynchronous
    if options.address is None or is_loopback(split_address(options.address)[0]):
        return
    if read_token(options.token_file, TOKEN_VARIABLE) is None:
        raise UserError(
            f"whoever reaches asynchronous.address {options.address} could feed this learner; give a token by "
            f"asynchronous.token_file or {TOKEN_VARIABLE}"
        )
