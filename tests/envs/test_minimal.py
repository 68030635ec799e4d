from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.envs.minimal import MinimalTest
from steppe.errors import UserError
from steppe.spec_files import read_environment


def test_the_right_choice_flips_the_state_and_is_rewarded() -> None:
    env = MinimalTest()
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs, [1, 0])
    for action in (1, 0, 1, 1, 0):
        obs, reward, _, truncated, _ = env.step(action)
        np.testing.assert_array_equal(obs, [1 - action, action])
        assert (reward, truncated) == (action, False)


def test_numbers_move_the_state_within_its_bounds() -> None:
    env = MinimalTest({"float": [], "bounded": [2]})
    np.testing.assert_array_equal(env.action_space.low, [-np.inf, -0.5, -0.5])
    np.testing.assert_array_equal(env.action_space.high, [np.inf, 1.5, 1.5])
    env.reset(seed=0)
    moves = [[0.25, 0.0, 1.0], [9.0, -0.5, -0.5], [-0.5, 1.0, 1.0]]
    reached = [[0.25, 0.5], [1.0, 0.0], [0.5, 1.0]]
    for move, (first, second) in zip(moves, reached, strict=True):
        obs, reward, *_ = env.step(np.array(move, np.float32))
        np.testing.assert_allclose(obs, [1 - first, first, 1 - second, second])
        assert reward == pytest.approx((first + second) / 2)


@pytest.mark.parametrize(
    ("specification", "space"),
    [
        ({"int": []}, gymnasium.spaces.Discrete(2)),
        ({"bool": 3}, gymnasium.spaces.MultiDiscrete([2, 2, 2])),
        ({"bool": [], "int": [2]}, gymnasium.spaces.MultiDiscrete([2, 2, 2])),
    ],
)
def test_choices_of_every_shape(specification: dict, space: gymnasium.Space) -> None:
    assert MinimalTest(specification).action_space == space


def test_episodes_last_four_steps_on_average() -> None:
    env = MinimalTest()
    env.reset(seed=0)
    ends = [env.step(1)[2] for _ in range(4000)]
    assert 900 < sum(ends) < 1100


def test_the_old_name_makes_it_and_a_wrong_specification_is_explained() -> None:
    with GymnasiumEnvs(read_environment({"type": "minimal_test", "specification": {"int": [2]}}), 2) as envs:
        envs.reset(0)
        np.testing.assert_array_equal(envs.step(np.array([[1, 1], [0, 1]])).rewards, [1.0, 0.5])
    for specification, message in (
        ({"string": []}, "bool, int, float and bounded"),
        ({"int": 1, "float": 1}, "not both"),
        ([["int", []]], "must be an object"),
    ):
        with pytest.raises(UserError, match=message):
            GymnasiumEnvs(read_environment({"type": "minimal_test", "specification": specification}), 1)
