from __future__ import annotations

import subprocess
import sys

import jax
import pytest

from steppe.envs.registry import catalogue, compiled_ids, has_compiled, make_compiled, plays_atari, settings_of
from steppe.errors import SpecError
from steppe.spec_files import read_environment
from steppe.specs.environment import EnvironmentSpec


def test_names_are_answered_without_jax_or_gymnasium() -> None:
    program = (
        "import sys; from steppe.envs.registry import compiled_ids, has_compiled; has_compiled('CartPole-v1'); "
        "compiled_ids(); "
        "print([name for name in ('jax', 'gymnasium') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_compiled_environment_runs_without_gymnasium() -> None:
    program = (
        "import sys, jax; from steppe.envs.registry import make_compiled; "
        "from steppe.specs.environment import EnvironmentSpec; "
        "env = make_compiled(EnvironmentSpec(id='CartPole-v1')); env.observe(env.reset(jax.random.key(0))); "
        "print('gymnasium' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


@pytest.mark.parametrize("id", [*compiled_ids(), "GridWorld"])
def test_every_known_id_can_be_made_hashed_and_stepped(id: str) -> None:
    assert has_compiled(id)
    env, same = (make_compiled(EnvironmentSpec(id=id)) for _ in range(2))
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
    short = make_compiled(EnvironmentSpec(id="CartPole-v1", settings={"max_episode_steps": 7}))
    assert short.max_episode_steps == 7
    assert short != make_compiled(EnvironmentSpec(id="CartPole-v1"))


def test_an_unknown_id_names_the_nearest_one() -> None:
    assert not has_compiled("CartPoll-v1")
    with pytest.raises(SpecError, match=r'"CartPoll-v1" has no compiled version.*did you mean "CartPole-v1"'):
        make_compiled(EnvironmentSpec(id="CartPoll-v1"))


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
        make_compiled(EnvironmentSpec(id="CartPole-v1", settings=settings))


def test_the_catalogue_has_every_twin_and_a_line_for_each_family() -> None:
    entries = {entry.id: entry for entry in catalogue()}
    assert {id for id, entry in entries.items() if entry.kind == "compiled"} == set(compiled_ids())
    assert {entry.kind for entry in entries.values()} == {"compiled", "remote", "atari", "mujoco", "box2d", "minigrid"}
    assert all(entry.sentence.endswith(".") for entry in entries.values())


def test_the_whole_catalogue_has_every_id_that_can_be_made_and_none_that_only_points_elsewhere() -> None:
    kinds = {entry.id: entry.kind for entry in catalogue(every=True)}
    assert kinds["CartPole-v1"] == "compiled"
    assert kinds["FrozenLake-v1"] == "gymnasium"
    assert kinds["HalfCheetah-v5"] == "mujoco"
    assert "HalfCheetah-v2" not in kinds


def test_settings_come_with_their_defaults() -> None:
    defaults = {setting.name: setting.default for setting in settings_of("ALE/Pong-v5")}
    assert (defaults["frame_skip"], defaults["repeat_action_probability"], defaults["max_frames"]) == (4, 0.25, 108_000)
    assert {setting.name: setting.default for setting in settings_of("GridWorld")}["width"] == 5
    lake = {setting.name: setting.default for setting in settings_of("FrozenLake-v1")}
    assert (lake["map_name"], lake["is_slippery"], lake["max_episode_steps"]) == ("4x4", True, 100)
    assert all(setting.sentence for setting in settings_of("CartPole-v1"))
    assert [setting.name for setting in settings_of("steppe_toys:Mixed")][-1] == "max_episode_steps"


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"id": "ALE/Pong-v5"}, True),
        ({"id": "PongNoFrameskip-v4"}, True),
        ({"id": "ALE/Pong-v5", "backend": "gymnasium"}, False),
        ({"id": "ALE/Pong-v5", "wrappers": ["gymnasium.wrappers.ClipReward"]}, False),
        ({"gym_id": "Pong-v0"}, False),
        ({"id": "CartPole-v1"}, False),
    ],
)
def test_atari_is_preprocessed_unless_somebody_else_does_it(fields: dict, answer: bool) -> None:
    assert plays_atari(read_environment(fields)) is answer
