"""Run mode multi-threaded: `num_workers` threads step one shared model without waiting for each other (Hogwild)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steppe.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    from steppe.runners._base import Engine

__all__ = ["checked_engine", "make_engine"]


def make_engine(spec: ExperimentSpec) -> Engine:
    """Builds environments, agent and threads; finds every mistake in the spec."""
    from steppe.runners import setup
    from steppe.runners.compilation import let_threads_compute
    from steppe.runners.engines.threads.engine import HostEnvPool, ThreadsEngine
    from steppe.runners.play.episodes import EpisodeRules

    let_threads_compute(spec.num_workers)
    alone = spec.model_copy(update={"run_mode": "single"})
    first = setup.make_engine(alone, shards=1)
    try:
        agent = first.agent.for_workers(spec.num_workers)
        if first.rollout is not None:
            engine = ThreadsEngine(agent, spec.num_workers, EpisodeRules(spec.environment), first.rollout, None)
        else:
            rules = EpisodeRules(spec.environment, first.envs.max_episode_steps, spec.repeat_actions)
            hosts = HostEnvPool(first.envs, lambda: setup.make_engine(alone, shards=1).envs)
            engine = ThreadsEngine(agent, spec.num_workers, rules, None, hosts)
        engine.notices = first.notices
        return engine
    except BaseException:
        first.close()
        raise


def checked_engine(spec: ExperimentSpec) -> tuple[Engine, list[str]]:
    """The engine, with notices of its settings; a UserError if many threads cannot share the model."""
    from steppe.runners.engines.threads.exploration import CHANCES, FINAL_EPSILONS, explores_apart

    engine = make_engine(spec)
    notices = []
    if explores_apart(engine.agent, spec.num_workers):
        ends = ", ".join(f"{end:g} ({chance:.0%})" for end, chance in zip(FINAL_EPSILONS, CHANCES, strict=True))
        notices.append(
            f"each worker draws where its share of random actions ends: {ends}; it lowers returns while learning, "
            "so watch those of an evaluation, or give agent.exploration another final_epsilon, for all"
        )
    return engine, notices
