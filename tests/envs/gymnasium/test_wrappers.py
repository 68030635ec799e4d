from __future__ import annotations

import numpy as np
import pytest

from steppe.envs.gymnasium.factory import make_env
from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import EnvironmentFault, UserError
from steppe.specs.environment import EnvironmentSpec

COUNTER = "steppe_toys:Counter"


def spec(*wrappers, id: str = COUNTER, **fields) -> EnvironmentSpec:
    return EnvironmentSpec(id=id, wrappers=list(wrappers), **fields)


@pytest.mark.parametrize("way", ["sync", "processes"])
def test_wrappers_are_applied_in_order(way: str) -> None:
    times = {"type": "steppe_toys:Times", "factor": 3}
    clip = {"type": "gymnasium.wrappers.ClipReward", "max_reward": 5}
    for wrappers, rewards in (((times, clip), [0, 3, 5]), ((clip, times), [0, 3, 12]), ((times,), [0, 3, 12])):
        with GymnasiumEnvs(spec(*wrappers, vectorization=way), 3) as envs:
            envs.reset(0)
            np.testing.assert_array_equal(envs.step(np.array([0, 1, 4])).rewards, rewards)


def test_a_wrapper_by_its_name_alone_takes_its_defaults() -> None:
    with GymnasiumEnvs(spec("gymnasium.wrappers.NormalizeReward", id="CartPole-v1"), 2) as envs:
        assert envs.reset(0).shape == (2, 4)
        assert envs.max_episode_steps == 500


def test_a_wrapped_environment_does_not_run_compiled() -> None:
    assert spec("gymnasium.wrappers.ClipReward", id="CartPole-v1").backend == "gymnasium"


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("gymnasium.wrapers.ClipReward", 'names the module "gymnasium.wrapers", which is not there'),
        ("gymnasium.wrappers.ClipRewards", 'does not have; did you mean "ClipReward"'),
        ("steppe_toys:Time", 'wrapper "steppe_toys:Time" of environment .* did you mean "Times"'),
        ("ClipReward", 'must be written "module.Name"'),
        ({"type": "gymnasium.wrappers.ClipReward", "maximum": 1}, 'no argument "maximum"; .*max_reward'),
        ({"type": "steppe_toys:Times", "factr": 1}, 'no argument "factr"; did you mean "factor"'),
        ("steppe_toys:Times", 'needs the argument "factor"'),
        ("steppe_toys:wrap_into_nothing", "returned str, not a gymnasium.Env"),
    ],
)
def test_mistakes_in_a_wrapper_are_named(wrapper, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_env(spec(wrapper))


def test_a_wrapper_that_fails_is_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match=r'"steppe_toys:Times".*could not be made: ZeroDivisionError'):
        make_env(spec({"type": "steppe_toys:Times", "factor": 0}))


def test_text_beside_numbers_is_left_out_with_a_notice() -> None:
    with GymnasiumEnvs(EnvironmentSpec(id="steppe_toys:Labelled"), 2) as envs:
        assert envs.observation_space.shape == (2,)
        np.testing.assert_array_equal(envs.reset(0), [[0, 1]] * 2)
        np.testing.assert_array_equal(envs.step(np.zeros(2, int)).observations, [[1, 1]] * 2)
        (notice,) = envs.notices
        assert notice.startswith('environment "steppe_toys:Labelled" also observes text, "label", which is left out')
    with GymnasiumEnvs(EnvironmentSpec(id=COUNTER), 1) as envs:
        assert envs.notices == ()
