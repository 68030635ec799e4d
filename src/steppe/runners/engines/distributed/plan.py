"""Derives from an experiment the engine of each worker, and the division of the parameters among the servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steppe.agents import agent_class
from steppe.errors import UserError
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.learning.agent import AgentSpec

if TYPE_CHECKING:
    from steppe.agents._base import Agent
    from steppe.runners._base import Engine
    from steppe.runners.engines.distributed.gradient_tape import OptimizerRange
    from steppe.runners.engines.distributed.parameter_server import ShardConfig

GRADIENTS_PER_PUSH = {"trajectories": 16, "transitions": 4}
"""A message costs about as much as a small network's rollout and gradient, so several gradients share one. Learning
from a memory suffers more from stale gradients: with two workers, 16 gradients at once halve the return after 50,000
timesteps of CartPole-v1, and 4 cost nothing."""
MOST_NUMBERS_PER_PUSH = 2**20
"""The largest push in numbers: gradients of large networks are better sent in smaller groups."""


def worker_engine(spec: ExperimentSpec) -> Engine:
    """The engine that each worker runs, with an agent that knows the number of workers."""
    from steppe.runners.setup import make_engine

    engine = make_engine(worker_spec(spec), shards=1, xla_threads=1)
    # The engine's spec gives the memory one worker's share already.
    engine.agent = engine.agent.for_workers(
        spec.num_workers, shares_memory=False, updates_together=spec.distributed.synchronous
    )
    return engine


def worker_spec(spec: ExperimentSpec) -> ExperimentSpec:
    """The experiment that each worker runs, as if it were alone."""
    changes: dict[str, Any] = {"run_mode": "single"}
    timesteps = spec.limits[1]
    if spec.distributed.synchronous and timesteps is not None:
        # All workers together make one update, so there are fewer updates in total.
        changes["total_timesteps"] = -(-timesteps // spec.num_workers)
    algorithm = agent_class(spec.agent)
    if algorithm.experience == "transitions":
        settings = spec.agent.settings_as(algorithm.Settings)
        memory = settings.memory
        # The capacity of the experiment is that of all workers together.
        share = max(-(-memory.capacity // spec.num_workers), settings.batch_size)
        smaller = memory.model_dump(mode="json", exclude_unset=True) | {"capacity": share}
        agent = AgentSpec.model_validate({"type": spec.agent.type} | spec.agent.settings | {"memory": smaller})
        changes["agent"] = agent.suited_to(spec.agent.defaults)
    return spec.model_copy(update=changes)


def rollouts_per_push(spec: ExperimentSpec, agent: Agent[Any]) -> int:
    """The number in the experiment, or one that suits the agent."""
    from steppe.runners.engines.distributed.gradient_tape import steps_per_rollout

    if spec.distributed.rollouts_per_push is not None:
        return spec.distributed.rollouts_per_push
    steps = steps_per_rollout(agent)
    size = agent.layout.size
    return max(1, min(GRADIENTS_PER_PUSH[agent.experience] // steps, MOST_NUMBERS_PER_PUSH // (size * steps)))


def borders_of(size: int, servers: int) -> list[int]:
    """The start of each server's shard, and the end of the last one."""
    if servers > size:
        raise UserError(f"num_parameter_servers is {servers}, but the network has only {size} parameters to share out")
    return [size * index // servers for index in range(servers + 1)]


def shard_config(
    spec: ExperimentSpec, agent: Agent[Any], parts: list[OptimizerRange], start: int, stop: int
) -> ShardConfig:
    """The configuration of the server of the parameters `start` to `stop`."""
    from steppe.runners.engines.distributed.parameter_server import Segment, ShardConfig

    segments = [
        Segment(max(part.start, start) - start, min(part.stop, stop) - start, part.optimizer, part.rate)
        for part in parts
        if part.start < stop and part.stop > start
    ]
    return ShardConfig(
        segments=segments,
        max_staleness=spec.distributed.max_staleness,
        target_sync_frequency=agent.target_sync.frequency,
        target_update_weight=agent.target_sync.weight,
    )
