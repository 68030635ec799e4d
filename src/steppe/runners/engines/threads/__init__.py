"""Run mode multi-threaded: `num_workers` threads step one shared model without waiting for each other (Hogwild)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from steppe.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    from steppe.runners._base import Engine

__all__ = ["check", "make_engine"]


def make_engine(spec: ExperimentSpec) -> Engine:
    """Builds environments, agent and threads; finds every mistake in the spec."""
    from steppe.runners import setup
    from steppe.runners.compilation import let_threads_compute
    from steppe.runners.engines.threads.engine import HostEnvPool, ThreadsEngine
    from steppe.runners.play.episodes import EpisodeRules

    let_threads_compute(spec.num_workers)
    alone = spec.model_copy(update={"run_mode": "single"})
    first = setup.make_engine(alone, shards=1)
    _share_memory(first.agent, spec.num_workers)
    try:
        if first.rollout is not None:
            engine = ThreadsEngine(first.agent, spec.num_workers, EpisodeRules(spec.environment), first.rollout, None)
        else:
            rules = EpisodeRules(spec.environment, first.envs.max_episode_steps, spec.repeat_actions)
            hosts = HostEnvPool(first.envs, lambda: setup.make_engine(alone, shards=1).envs)
            engine = ThreadsEngine(first.agent, spec.num_workers, rules, None, hosts)
        engine.notices = first.notices
        return engine
    except BaseException:
        first.close()
        raise


def check(spec: ExperimentSpec) -> list[str]:
    """Returns notices; raises a UserError for agents that many threads cannot train at once."""
    from steppe.runners.engines.threads.exploration import CHANCES, FINAL_EPSILONS, explores_apart

    engine = make_engine(spec)
    try:
        notices = []
        if explores_apart(engine.agent, spec.num_workers):
            ends = ", ".join(f"{end:g} ({chance:.0%})" for end, chance in zip(FINAL_EPSILONS, CHANCES, strict=True))
            notices.append(
                f"each worker draws where its share of random actions ends: {ends}; it lowers returns while learning, "
                "so watch those of an evaluation, or give agent.exploration another final_epsilon, for all"
            )
        return notices
    finally:
        engine.close()


def _share_memory(agent: Any, num_workers: int) -> None:
    """Divides the capacity of the replay memory among the workers, each of which has its own memory."""
    if agent.experience != "transitions":
        return
    memory = agent.memory
    own = getattr(memory, "own", memory)
    room = max(-(-own.capacity // num_workers), agent.settings.batch_size)
    own = dataclasses.replace(own, capacity=room)
    agent.memory = dataclasses.replace(memory, own=own) if hasattr(memory, "own") else own
