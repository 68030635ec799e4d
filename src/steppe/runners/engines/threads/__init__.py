"""Run mode multi-threaded: `num_workers` threads step one shared model without waiting for each other (Hogwild)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steppe.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    from steppe.runners._base import Engine

__all__ = ["check", "make_engine"]


def make_engine(spec: ExperimentSpec) -> Engine:
    """Environments, agent and threads; everything that can be wrong with a spec is found here."""
    from steppe.runners import setup
    from steppe.runners.compilation import let_threads_compute
    from steppe.runners.engines.threads.engine import ThreadsEngine
    from steppe.runners.engines.threads.hosts import Hosts
    from steppe.runners.play.episodes import Rules

    let_threads_compute(spec.num_workers)
    alone = spec.model_copy(update={"run_mode": "single"})
    first: Any = setup.make_engine(alone, shards=1)
    try:
        agent = first.agent.for_workers(spec.num_workers)
        if hasattr(first, "rollout"):
            engine = ThreadsEngine(agent, spec.num_workers, Rules(spec.environment), first.rollout, None)
        else:
            rules = Rules(spec.environment, first.envs.max_episode_steps, spec.repeat_actions)
            hosts = Hosts(first.envs, lambda: setup.make_engine(alone, shards=1).envs)  # type: ignore[attr-defined]
            engine = ThreadsEngine(agent, spec.num_workers, rules, None, hosts)
        engine.notices = first.notices
        return engine
    except BaseException:
        first.close()
        raise


def check(spec: ExperimentSpec) -> list[str]:
    """Notices; a UserError for what cannot learn from many threads at once."""
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
