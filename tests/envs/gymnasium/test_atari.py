from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from steppe.envs.gymnasium.atari import AtariSettings
from steppe.envs.gymnasium.factory import make_env
from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import EnvironmentFault, SpecError, UserError
from steppe.spec_files import read_environment
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box, Discrete

pytest.importorskip("ale_py", reason="the extra atari is not installed")

CERTAIN = {"repeat_action_probability": 0.0, "no_op_max": 0}
"""Deterministic settings, with which two emulators play the same game."""


def spec(game: str = "Breakout", **settings) -> EnvironmentSpec:
    return EnvironmentSpec(id=f"ALE/{game}-v5", settings=settings)


class Reference:
    """A reference in Python: the expected results of one game for the learner and for the score."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.env, _ = make_env(spec)

    def reset(self) -> np.ndarray:
        seen, info = self.env.reset(seed=0)
        self.lives = info["lives"]
        return seen

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        """(observation, score, an end for the learner, the end of the game)."""
        seen, score, is_over, _, info = self.env.step(action)
        lost, self.lives = 0 < info["lives"] < self.lives, info["lives"]
        return seen, score, is_over or lost, is_over


def close(first: np.ndarray, second: np.ndarray) -> bool:
    """Equal but for the rounding of shrunk pixels."""
    return bool(np.max(np.abs(first.astype(int) - second.astype(int))) <= 1)


@pytest.mark.parametrize(("game", "steps"), [("Breakout", 400), ("SpaceInvaders", 1000)])
def test_the_learner_sees_lost_lives_and_clipped_rewards_and_the_score_is_of_whole_games(game: str, steps: int) -> None:
    rng = np.random.default_rng(3)
    references = [Reference(spec(game, **CERTAIN)) for _ in range(2)]
    with GymnasiumEnvs(spec(game, **CERTAIN), 2) as envs:
        assert envs.observation_space == Box((4, 84, 84), (0.0,), (255.0,), "uint8")
        assert envs.max_episode_steps == 27_000
        seen = envs.reset(0)
        assert all(close(seen[i], reference.reset()) for i, reference in enumerate(references))
        ends, games, scores = 0, 0, 0.0
        for _ in range(steps):
            actions = rng.integers(0, envs.action_space.n, 2)
            step = envs.step(actions)
            assert not step.truncated.any()
            for i, reference in enumerate(references):
                seen, score, is_end, is_over = reference.step(actions[i])
                assert (step.scores[i], step.rewards[i]) == (score, np.sign(score))
                assert (step.terminated[i], step.finished[i]) == (is_end, is_over)
                if not is_over:
                    assert close(step.next_observations[i], seen)
                assert close(step.observations[i], reference.reset() if is_over else seen)
                ends, games, scores = ends + is_end, games + is_over, scores + score
            assert (step.observations is step.next_observations) == (not step.finished.any())
        assert ends > games > 0
        assert scores > 0


def test_the_last_observation_of_a_game_is_not_the_first_of_the_next() -> None:
    with (
        GymnasiumEnvs(spec("Pong", **CERTAIN, max_frames=400), 2) as envs,
        GymnasiumEnvs(spec("Pong", **CERTAIN), 2) as longer,
    ):
        first = envs.reset(0).copy()
        longer.reset(0)
        for t in range(1, 101):
            step, uncut = envs.step(np.array([2, 3])), longer.step(np.array([2, 3]))
            assert step.truncated.tolist() == step.finished.tolist() == [t == 100] * 2
            assert not step.terminated.any()
            np.testing.assert_array_equal(step.next_observations, uncut.observations)
        np.testing.assert_array_equal(step.observations, first)
        assert not envs.step(np.array([2, 3])).truncated.any()


def test_games_are_truncated_separately() -> None:
    rng = np.random.default_rng(0)
    lengths = np.zeros(3, int)
    with GymnasiumEnvs(spec(**CERTAIN), 3, max_timesteps_per_episode=150) as envs:
        envs.reset(0)
        seen = []
        for _ in range(600):
            step = envs.step(rng.integers(0, 4, 3))
            lengths += 1
            assert np.all(step.truncated == (step.finished & (lengths == 150) & ~step.terminated))
            seen += lengths[step.finished].tolist()
            lengths[step.finished] = 0
    assert max(seen) == 150 > min(seen)


def test_a_game_without_episodic_life_ends_only_at_its_end() -> None:
    with GymnasiumEnvs(spec(**CERTAIN, episodic_life=False, clip_rewards=False), 1) as envs:
        envs.reset(0)
        ends = 0
        for t in range(300):
            step = envs.step(np.array([t % 2]))
            assert step.terminated[0] == step.finished[0]
            assert step.rewards[0] == step.scores[0]
            ends += int(step.terminated[0])
        assert ends > 0


def test_seeds_fix_the_sticky_actions_and_the_first_frames() -> None:
    def play(envs: GymnasiumEnvs, seed: int) -> np.ndarray:
        frames = [envs.reset(seed).copy()]
        return np.stack(frames + [envs.step(np.array([2, 3])).observations for _ in range(60)])

    with GymnasiumEnvs(spec(), 2) as envs:
        first = play(envs, 5)
        np.testing.assert_array_equal(play(envs, 5), first)
        assert np.any(play(envs, 6) != first)
        assert play(envs, 2**31 + 5).shape == first.shape


def test_colours_of_all_frames_lie_in_the_last_axis() -> None:
    coloured = spec("SpaceInvaders", **CERTAIN, grayscale=False, frame_stack=2, height=42, width=40)
    reference = Reference(coloured)
    with GymnasiumEnvs(coloured, 1) as envs:
        assert envs.observation_space.shape == (42, 40, 6)
        assert close(envs.reset(0)[0], reference.reset())
        for action in (1, 2, 3, 1, 2):
            assert close(envs.step(np.array([action])).observations[0], reference.step(action)[0])


def test_all_actions_are_available_on_request() -> None:
    with GymnasiumEnvs(spec(full_action_space=True, threads=1), 1) as envs:
        assert envs.action_space == Discrete(18)
    with GymnasiumEnvs(spec(), 1) as envs:
        assert envs.action_space == Discrete(4)


@pytest.mark.parametrize(
    ("changed", "arguments", "message"),
    [
        ({"settings": {"frameskipp": 2}}, {}, 'unknown field "frameskipp".*did you mean "frame_skip'),
        ({"settings": {"frame_skip": 0}}, {}, "environment.settings.frame_skip; it must be at least 1"),
        ({"id": "ALE/Breakot-v5"}, {}, 'unknown environment "ALE/Breakot-v5".*did you mean "ALE/Breakout-v5"'),
        ({"vectorization": "processes"}, {}, 'leave out "vectorization"'),
        ({}, {"repeat_actions": 2}, "by its setting frame_skip"),
    ],
)
def test_wrong_settings_are_named(changed: dict, arguments: dict, message: str) -> None:
    with pytest.raises((SpecError, UserError), match=message):
        GymnasiumEnvs(EnvironmentSpec(**{"id": "ALE/Breakout-v5"} | changed), 2, **arguments)


def test_an_exception_of_the_emulator_is_a_fault() -> None:
    with GymnasiumEnvs(spec(), 2) as envs:
        envs.reset(0)
        envs.step(np.array([0, 1]))
        with pytest.raises(EnvironmentFault, match=r'"ALE/Breakout-v5" at step 2: raised'):
            envs.step(np.array([0, 1, 2]))


def test_the_gymnasium_backend_gives_whole_frames_as_the_old_class_did() -> None:
    old = read_environment({"type": "tensorforce.contrib.openai_gym.OpenAIGym", "gym_id": "SpaceInvaders-v0"})
    with GymnasiumEnvs(old, 2) as envs:
        assert envs.observation_space == Box((210, 160, 3), (0.0,), (255.0,), "uint8")
        assert envs.action_space == Discrete(6)
        assert envs.max_episode_steps == 54_000
        envs.reset(0)
        frames = []
        for _ in range(30):
            step = envs.step(np.array([1, 2]))
            assert step.scores is step.rewards
            frames.append([env.ale.getEpisodeFrameNumber() for env in envs._stepper._envs])
        assert set(np.diff(frames, axis=0).reshape(-1).tolist()) == {2, 3, 4}


def test_a_lost_life_ends_and_is_punished_as_the_old_ale_class_did_it() -> None:
    old = {"type": "tensorforce.contrib.ale.ALE", "rom": "roms/breakout.bin", "frame_skip": 4}
    old |= {"loss_of_life_termination": True, "loss_of_life_reward": -5}
    with GymnasiumEnvs(read_environment(old), 1) as envs:
        envs.reset(0)
        steps = [(step.terminated[0], step.rewards[0]) for step in (envs.step(np.array([t % 2])) for t in range(80))]
        assert {is_end for is_end, _ in steps} == {False, True}
        assert all((reward < 0) == is_end for is_end, reward in steps)
        assert envs._stepper._envs[0].unwrapped.ale.lives() >= 4  # each end starts a new game, with all its lives


def test_the_page_has_every_setting_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text(encoding="utf-8")
    section = page.split("\n## Atari\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \| `(.+?)` \|", section, flags=re.MULTILINE)
    told = {name: json.loads(default) for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    assert told == AtariSettings().model_dump()


def test_a_game_can_be_closed_and_made_again() -> None:
    for _ in range(3):
        envs = GymnasiumEnvs(spec(), 2)
        envs.reset(0)
        assert envs.step(np.array([0, 0])).observations.shape[0] == 2
        envs.close()
        envs.close()
