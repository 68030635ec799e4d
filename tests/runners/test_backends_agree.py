"""Training in a compiled environment gives the same results as in its gymnasium original."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from runs import TINY_DQN

from steppe.runners._base import ChunkLimits

TINY = {"type": "ppo", "horizon": 16, "minibatches": 2}


def cartpole(backend):
    return {"id": "CartPole-v1", "backend": backend}


@pytest.mark.parametrize("backend", ["compiled", "gymnasium"])
def test_frames_are_stacked_by_decision_however_often_actions_are_repeated(engine_for, backend):
    agent = {"type": "vpg", "horizon": 8, "states_preprocessing": [{"type": "sequence", "length": 2}]}
    engine = engine_for(cartpole(backend), agent, num_envs=2, repeat_actions=3)
    if backend == "gymnasium":
        trajectory = engine._collector.collect(engine._learner.agent, 0).trajectory
    else:
        run = engine._run
        trajectory = jax.jit(engine.rollout.collect)(run.envs, engine.agent.actor_params(run.learner.agent), 0)[1]
    now = np.asarray(trajectory.observations).reshape(8, 2, 2, 4)
    then = np.asarray(trajectory.next_observations).reshape(8, 2, 2, 4)
    # The older half of the successor is the newer half of the observation.
    np.testing.assert_array_equal(then[..., 0, :], now[..., 1, :])


def test_a_greedy_evaluation_acts_as_the_saved_policy_does(engine_for):
    noisy = engine_for(cartpole("compiled"), {**TINY, "variable_noise": 1.0})
    quiet = engine_for(cartpole("compiled"), TINY)
    assert noisy.evaluate(20, True, 3) == quiet.evaluate(20, True, 3)


def test_timesteps_after_a_resume_do_not_continue_saved_episodes(engine_for):
    agent = {**TINY_DQN, "n_step": 3}
    engine, again = (engine_for(cartpole("gymnasium"), agent, num_envs=1) for _ in range(2))
    engine.advance(4, 0, ChunkLimits())
    again.restore(engine.snapshot(), 1)
    memory = again._learner.memory
    newest = (int(memory.head) - 1) % again.agent.memory.rows
    before = engine._learner.memory.timesteps
    assert not np.asarray(before.terminated[newest] | before.truncated[newest]).any()
    assert np.asarray(memory.timesteps.truncated[newest]).all()


def test_timesteps_beyond_the_range_of_a_program_are_allowed(engine_for):
    layers = [{"type": "conv1d", "size": 4, "window": 2}, {"type": "flatten"}]
    agent = {**TINY_DQN, "states_preprocessing": [{"type": "expand_dims", "axis": -1}]}
    engine = engine_for(cartpole("gymnasium"), agent, network=layers)
    assert engine._collector._act is not None
    engine._collector.collect(engine._learner.agent, 2**31 + 5)
