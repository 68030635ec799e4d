from __future__ import annotations

import json
from typing import Any

import pytest

from steppe.errors import SpecError
from steppe.spec_files import read_environment, read_experiment
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import dump

GYM = "tensorforce.contrib.openai_gym.OpenAIGym"
ALE = "tensorforce.contrib.ale.ALE"
WHOLE_FRAMES = {"frameskip": [2, 5], "repeat_action_probability": 0.25}


def understood(written: Any) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    return read_environment(written, "env.json").model_dump(exclude_defaults=True)


@pytest.mark.parametrize(
    "type", [GYM, "openai_gym", "OpenAIGym", "gym", "tensorforce.environments.openai_gym.OpenAIGym"]
)
def test_the_class_around_gym_is_not_needed_any_more(type: str) -> None:
    for name in ("gym_id", "level"):
        spec = read_environment({"type": type, name: "CartPole-v1"})
        assert spec == EnvironmentSpec(id="CartPole-v1")
        assert spec.notices == (
            f'environment type "{type}" is no longer needed: "CartPole-v1" alone names the environment',
        )


def test_the_note_on_an_old_game_says_what_gives_the_same() -> None:
    spec = read_environment({"type": GYM, "gym_id": "SpaceInvaders-v0"})
    advice = {"id": "SpaceInvaders-v0", "backend": "gymnasium"}
    assert f"no longer needed: {json.dumps(advice)} names the environment" in spec.notices[0]
    assert read_environment(advice) == spec


def test_the_old_manuals_game_gives_whole_frames() -> None:
    spec = read_environment({"type": GYM, "gym_id": "SpaceInvaders-v0"})
    assert (spec.id, spec.backend, spec.settings) == ("ALE/SpaceInvaders-v5", "gymnasium", WHOLE_FRAMES)
    assert spec.notices[1] == (
        'environment "SpaceInvaders-v0" now is "ALE/SpaceInvaders-v5" with frameskip [2, 5] and '
        "repeat_action_probability 0.25; whole frames are observed, in colour"
    )


@pytest.mark.parametrize(
    ("written", "fields"),
    [
        ("Breakout-v0", {"settings": {"repeat_action_probability": 0.25}}),
        ("Breakout-v4", {"settings": {"repeat_action_probability": 0.0}}),
        ("BreakoutNoFrameskip-v4", {"settings": {"repeat_action_probability": 0.0}}),
        ("BreakoutNoFrameskip-v0", {"settings": {"repeat_action_probability": 0.25}}),
        ("BreakoutDeterministic-v4", {"settings": {"repeat_action_probability": 0.0, "frame_skip": 4}}),
        ({"gym_id": "Breakout-v0"}, {"backend": "gymnasium", "settings": WHOLE_FRAMES}),
        (
            {"id": "BreakoutNoFrameskip-v4", "backend": "gymnasium", "settings": {"mode": 4}},
            {"backend": "gymnasium", "settings": {"frameskip": 1, "repeat_action_probability": 0.0, "mode": 4}},
        ),
        (
            {"id": "BreakoutNoFrameskip-v4", "settings": {"repeat_action_probability": 0.1}},
            {"settings": {"repeat_action_probability": 0.1}},
        ),
        (
            {"id": "Breakout-v4", "wrappers": ["a.B"]},
            {
                "backend": "gymnasium",
                "wrappers": [{"type": "a.B"}],
                "settings": {"frameskip": [2, 5], "repeat_action_probability": 0.0},
            },
        ),
        (
            "Breakout-ram-v0",
            {"backend": "gymnasium", "settings": WHOLE_FRAMES | {"obs_type": "ram"}},
        ),
    ],
)
def test_old_atari_ids_keep_their_settings(written: Any, fields: dict) -> None:
    assert understood(written) == {"id": "ALE/Breakout-v5"} | fields
    assert len(read_environment(written).notices) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Pendulum-v0", "Pendulum-v1"),
        ("HalfCheetah-v2", "HalfCheetah-v5"),
        ("Walker2d-v3", "Walker2d-v5"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("FrozenLake-v0", "FrozenLake-v1"),
        ("Taxi-v2", "Taxi-v4"),
    ],
)
def test_versions_that_are_gone_become_the_present_one(old: str, new: str) -> None:
    for written in (old, {"id": old}, {"gym_id": old}):
        spec = read_environment(written)
        assert spec == EnvironmentSpec(id=new)
        assert spec.notices == (f'environment "{old}" now is "{new}"',)


@pytest.mark.parametrize("id", ["CartPole-v0", "MountainCar-v0", "HalfCheetah-v4", "ALE/Pong-v5", "my.gym:make"])
def test_what_is_there_today_is_left_alone(id: str) -> None:
    assert understood(id) == {"id": id}
    assert read_environment(id).notices == ()


def test_every_successor_is_registered() -> None:
    import gymnasium

    from steppe.tensorforce.environment_names import _SUCCESSORS

    missing = {new for new in _SUCCESSORS.values() if callable(gymnasium.registry[new].entry_point)}
    assert missing == set()
    # An old id that still works is not replaced.
    assert {
        old for old in _SUCCESSORS if old in gymnasium.registry and not callable(gymnasium.registry[old].entry_point)
    } == set()


def test_every_old_atari_game_is_still_there() -> None:
    roms = pytest.importorskip("ale_py.roms")
    from ale_py.registration import rom_id_to_name

    from steppe.tensorforce.environment_names import _GAMES

    assert set(_GAMES) <= {rom_id_to_name(rom) for rom in roms.get_all_rom_ids()}


def test_the_old_wrappers_window_and_records() -> None:
    written = {"type": GYM, "gym_id": "CartPole-v1", "monitor": None, "monitor_safe": False, "monitor_video": 0}
    assert understood(written | {"visualize": False}) == {"id": "CartPole-v1"}
    assert understood(written | {"visualize": True}) == {
        "id": "CartPole-v1",
        "backend": "gymnasium",
        "settings": {"render_mode": "human"},
    }
    spec = read_environment(written | {"monitor": "/tmp/x", "monitor_video": 100})
    assert spec.notices[1].startswith("monitor, monitor_video has no effect: every run leaves")


def test_the_old_ale_class_in_todays_words() -> None:
    assert understood({"type": ALE, "rom": "roms/space_invaders.bin"}) == {
        "id": "ALE/SpaceInvaders-v5",
        "backend": "gymnasium",
        "settings": {"frameskip": 1, "repeat_action_probability": 0.0},
    }
    full = {"rom": "breakout.bin", "frame_skip": 4, "repeat_action_probability": 0.1, "loss_of_life_termination": True}
    full |= {"type": "ale", "loss_of_life_reward": -1, "display_screen": True, "seed": None}
    assert understood(full) == {
        "id": "ALE/Breakout-v5",
        "backend": "gymnasium",
        "settings": {"frameskip": 4, "repeat_action_probability": 0.1, "render_mode": "human"},
        "wrappers": [{"type": "steppe.envs.gymnasium.atari:LossOfLife", "terminates": True, "reward": -1}],
    }


def test_unreal_engine_games_become_ue4() -> None:
    old = {"type": "tensorforce.contrib.unreal_engine.UE4Environment", "remote": True, "port": 6025, "num_ticks": 2}
    spec = read_environment(old)
    assert (spec.id, spec.settings) == ("ue4", {"port": 6025, "num_ticks": 2})
    assert spec.notices == ('environment "tensorforce.contrib.unreal_engine.UE4Environment" now is {"type": "ue4"}',)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ({"type": "tensorforce.contrib.deepmind_lab.DeepMindLab", "level_id": "x"}, "DeepMind Lab.*steppe env serve"),
        ({"type": "maze_explorer"}, "MazeExplorer has no package"),
        ({"type": "tensorforce.contrib.pygame_learning_environment.PLE"}, "PyGame Learning Environment"),
        ("openai_universe", "OpenAI Universe was shut down; name a gymnasium environment"),
        ({"type": "game_2048"}, 'no 2048; write it as a gymnasium environment and name it as "module:callable"'),
        ({"type": "openai_retro"}, "stable-retro"),
        ({"type": "tensorforce.contrib.unity.Unity"}, '"tensorforce.contrib.unity.Unity" is no environment that'),
        ({"type": "openai_gym"}, 'needs "gym_id"'),
        ({"type": ALE}, 'needs "rom"'),
        ({"type": ALE, "rom": "pong.bin", "seed": 3}, "write seed in the experiment"),
        ({"type": "UE4Environment", "image": "x/y"}, 'does not start the game of "image"'),
        ({"id": "CartPole-v1", "backend": "compiled", "wrappers": ["a.B"]}, "wrappers go around gymnasium's original"),
        (
            {"id": "CartPole-v1", "backend": "compiled", "vectorization": "sync"},
            "vectorization says how gymnasium's original is stepped; leave it out, or leave out",
        ),
        ({"id": "a", "wrappers": [3]}, r"wrong value 3 in env.json at wrappers\[0\]; it must be an object"),
        ({"id": "a", "wrappers": [{"factor": 3}]}, r'at wrappers\[0\]; a wrapper is "module.Name"'),
    ],
)
def test_what_cannot_be_had_ends_in_one_sentence(written: Any, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence) as error:
        read_environment(written, "env.json")
    assert "env.json" in str(error.value)


def test_a_translated_spec_is_written_down_in_todays_words_and_read_back_without_notices() -> None:
    data = {"name": "a", "agent": "dqn", "environment": {"type": GYM, "gym_id": "SpaceInvaders-v0"}}
    spec = read_experiment(data)
    again = read_experiment(dump(spec))
    assert again == spec
    assert (len(spec.notices), again.notices) == (2, ())
