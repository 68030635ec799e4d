from __future__ import annotations

import subprocess
import sys

import jax
import pytest

from steppe.envs.registry import has_twin, known_ids, make_jax
from steppe.errors import SpecError
from steppe.specs.environment import EnvironmentSpec


def test_names_are_answered_without_jax_or_gymnasium() -> None:
    program = (
        "import sys; from steppe.envs.registry import has_twin, known_ids; has_twin('CartPole-v1'); known_ids(); "
        "print([name for name in ('jax', 'gymnasium') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_compiled_environment_runs_without_gymnasium() -> None:
    program = (
        "import sys, jax; from steppe.envs.registry import make_jax; "
        "from steppe.specs.environment import EnvironmentSpec; "
        "env = make_jax(EnvironmentSpec(id='CartPole-v1')); env.observe(env.reset(jax.random.key(0))); "
        "print('gymnasium' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


@pytest.mark.parametrize("id", [*known_ids(), "GridWorld"])
def test_every_known_id_can_be_made_hashed_and_stepped(id: str) -> None:
    assert has_twin(id)
    env, same = (make_jax(EnvironmentSpec(id=id)) for _ in range(2))
    assert env == same
    assert hash(env) == hash(same)
    assert env.id == ("GridWorld-v0" if id == "GridWorld" else id)
    state = env.reset(jax.random.key(0))
    observation = env.observe(state)
    assert observation.shape == env.observation_space.shape
    assert observation.dtype == env.observation_space.dtype
    action = jax.numpy.zeros(env.action_space.shape, env.action_space.dtype)
    following, reward, terminated = jax.jit(env.step)(state, action)
    assert jax.tree.structure(following) == jax.tree.structure(state)
    assert [leaf.dtype for leaf in jax.tree.leaves(following)] == [leaf.dtype for leaf in jax.tree.leaves(state)]
    assert (reward.shape, reward.dtype, terminated.shape, terminated.dtype) == ((), "float32", (), "bool")


def test_settings_change_the_environment_and_its_identity() -> None:
    short = make_jax(EnvironmentSpec(id="CartPole-v1", settings={"max_episode_steps": 7}))
    assert short.max_episode_steps == 7
    assert short != make_jax(EnvironmentSpec(id="CartPole-v1"))


def test_an_unknown_id_names_the_nearest_one() -> None:
    assert not has_twin("CartPoll-v1")
    with pytest.raises(SpecError, match=r'"CartPoll-v1" has no compiled twin.*did you mean "CartPole-v1"'):
        make_jax(EnvironmentSpec(id="CartPoll-v1"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suton_barto_reward": True}, 'unknown field "suton_barto_reward".*did you mean "sutton_barto_reward"'),
        ({"sutton_barto_reward": "perhaps"}, "environment.settings.sutton_barto_reward.*true or false"),
        ({"max_episode_steps": 0}, "environment.settings.max_episode_steps; it must be at least 1"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(settings: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_jax(EnvironmentSpec(id="CartPole-v1", settings=settings))
