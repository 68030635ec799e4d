"""Training continues after a broken connection to the environments, and does not learn from steps that were lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from runs import TINY_DQN, TINY_PPO, experiment, train
from servers import ServerProcess, serving

from steppe.envs._base import EpisodesCut
from steppe.envs.remote.client import RemoteEnvs
from steppe.errors import EnvironmentFault
from steppe.runners._base import ChunkLimits
from steppe.runners.setup import make_engine


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The connection breaks before each of these steps, counted from 1."""
    at: list[int] = []
    take, taken = RemoteEnvs.take, [0]

    def breaking(envs: RemoteEnvs, actions: Any) -> Any:
        taken[0] += 1
        if taken[0] in at:
            for link in envs._links:
                link._channel._sock.close()
        return take(envs, actions)

    monkeypatch.setattr(RemoteEnvs, "take", breaking)
    yield at
    assert taken[0] > max(at)


def engine_for(address: str, agent: dict[str, Any]) -> Any:
    environment = {"type": "remote", "address": address}
    engine = make_engine(experiment(environment, agent, num_envs=2, max_timesteps_per_episode=99))
    engine.begin(0)
    return engine


def test_the_timestep_before_a_break_is_truncated_and_the_lost_one_is_missing(cut: list[int]) -> None:
    cut.append(6)
    with serving("steppe_toys:Counter", length=4) as address:
        engine = engine_for(address, TINY_PPO)
        collected = engine._collector.collect(engine._learner.agent, 0)
        engine.close()
    trajectory = collected.trajectory
    # Episodes of 4 timesteps: one whole, one cut after its first, two whole ones, and three timesteps of another.
    seen = [*range(4), 0, *range(4), *range(4), *range(3)]
    np.testing.assert_array_equal(trajectory.observations[:, 0, 0], seen)
    np.testing.assert_array_equal(trajectory.next_observations[:, 0, 0], np.array(seen) + 1)
    np.testing.assert_array_equal(np.flatnonzero(trajectory.truncated[:, 0]), [4])
    np.testing.assert_array_equal(np.flatnonzero(trajectory.terminated[:, 0]), [3, 8, 12])
    np.testing.assert_array_equal(trajectory.rewards, trajectory.actions)
    assert len(collected.returns) == 2 * 3


def test_a_break_between_two_rollouts_ends_the_last_timestep_in_memory(cut: list[int]) -> None:
    agent = {**TINY_DQN, "n_step": 3}
    with serving("steppe_toys:Counter", length=99) as address:
        engine = engine_for(address, agent)
        horizon = engine.agent.horizon
        cut.append(2 * horizon + 1)
        chunk = engine.advance(3, 0, ChunkLimits(None, None))
        memory = engine._learner.memory.timesteps
        engine.close()
    assert chunk.fault is None
    truncated = np.flatnonzero(np.asarray(memory.truncated)[: 3 * horizon, 0])
    np.testing.assert_array_equal(truncated, [2 * horizon - 1])
    np.testing.assert_array_equal(np.asarray(memory.observations)[2 * horizon, :, 0], [0, 0])


def test_an_evaluation_does_not_count_interrupted_episodes(cut: list[int]) -> None:
    cut.append(3)
    with serving("steppe_toys:Counter", length=4) as address:
        engine = engine_for(address, TINY_PPO)
        _, length = engine.evaluate(episodes=2, greedy=True, seed=0)
        engine.close()
    assert length == 4


@pytest.mark.faults
def test_a_run_outlives_its_server(tmp_path: Any) -> None:
    servers = [ServerProcess("CartPole-v1")]
    environment = {"type": "remote", "address": servers[0].address}
    spec = experiment(environment, TINY_PPO, num_envs=2, total_timesteps=2000)

    def restart(progress: Any) -> None:
        if progress.timestep >= 500 and len(servers) == 1:
            servers[0].kill()
            servers.append(ServerProcess("CartPole-v1", servers[0].port))

    try:
        outcome = train(tmp_path / "run", spec, show=restart)
    finally:
        servers[-1].kill()
    assert len(servers) == 2
    assert (outcome.state, outcome.timestep) == ("completed", 2016)


def test_a_caller_that_does_not_handle_breaks_ends_with_a_fault() -> None:
    assert issubclass(EpisodesCut, EnvironmentFault)
