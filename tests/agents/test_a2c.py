"""a2c is vpg with the settings of its paper."""

from __future__ import annotations

import jax
import numpy as np

from steppe.specs.spaces import Discrete


def test_an_update_is_that_of_vpg_with_the_same_settings(make_agent, shaken, random_trajectory):
    agent = make_agent("a2c", Discrete(3))
    settings = agent.settings
    assert (settings.optimizer.type, settings.gae_lambda, settings.horizon) == ("rmsprop", 1.0, 5)
    assert not settings.normalize_advantages
    other = make_agent("vpg", Discrete(3), **settings.model_dump(exclude={"initial_log_std"}))
    state = shaken(agent)
    trajectory = random_trajectory(agent, state)
    after, again = (jax.jit(each.update)(state, trajectory)[0] for each in (agent, other))
    np.testing.assert_array_equal(after.params, again.params)


def test_a3c_differs_in_its_name_only(make_agent):
    first, second = (make_agent(name, Discrete(3)) for name in ("a2c", "a3c"))
    assert first.settings == second.settings
    assert (first.type, second.type) == ("a2c", "a3c")
    assert isinstance(second, type(first))
