"""Atari games in ale-py's C++ vector environment, with the standard preprocessing.

Mnih et al. 2015 (doi:10.1038/nature14236); sticky actions as recommended by Machado et al. 2018 (arXiv:1709.06009).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from pydantic import AliasChoices, Field

from steppe.envs.gymnasium._sync import EnvDescription
from steppe.envs.gymnasium.factory import find_spec
from steppe.envs.gymnasium.vector import EnvStep
from steppe.errors import EnvironmentFault, UserError
from steppe.specs._base import Count, Natural, Settings, Unit
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.loading.validation import validate
from steppe.specs.spaces import Box, Discrete

NO_LIMIT = 2**30
"""More frames than any game has: limits are enforced here, since ale-py's own limit changes the last frame."""


class AtariSettings(Settings):
    """How an Atari game is played and seen."""

    frame_skip: Count = Field(4, validation_alias=AliasChoices("frame_skip", "frameskip"))
    """How many frames each action lasts."""
    frame_stack: Count = Field(4, validation_alias=AliasChoices("frame_stack", "stack_num"))
    """How many of the last seen frames are observed together."""
    height: Count = Field(84, validation_alias=AliasChoices("height", "img_height"))
    """The height that frames are shrunk to."""
    width: Count = Field(84, validation_alias=AliasChoices("width", "img_width"))
    """The width that frames are shrunk to."""
    grayscale: bool = True
    """Whether frames are grey; coloured ones are observed as height x width x (3 x frame_stack)."""
    max_pool: bool = Field(True, validation_alias=AliasChoices("max_pool", "maxpool"))
    """Whether a frame shows the brighter of its last two pictures, since games flicker."""
    no_op_max: Natural = Field(30, validation_alias=AliasChoices("no_op_max", "noop_max"))
    """Up to how many frames nothing is done at the start of a game, at random."""
    repeat_action_probability: Unit = 0.25
    """How likely each frame takes the action of the frame before (sticky actions)."""
    clip_rewards: bool = Field(True, validation_alias=AliasChoices("clip_rewards", "reward_clipping"))
    """Whether the agent is rewarded with the sign of the score; returns are counted in full."""
    episodic_life: bool = True
    """Whether a lost life ends an episode for the learner; the game goes on, and returns are those of whole games."""
    fire_at_start: bool = Field(True, validation_alias=AliasChoices("fire_at_start", "use_fire_reset"))
    """Whether FIRE is pressed at the start of a game that has it."""
    full_action_space: bool = False
    """Whether all 18 actions are offered, and not only those that do something in the game."""
    max_frames: Count = Field(108_000, validation_alias=AliasChoices("max_frames", "max_num_frames_per_episode"))
    """After how many frames a game is cut: half an hour."""
    threads: Count | None = Field(None, validation_alias=AliasChoices("threads", "num_threads"))
    """How many threads play; without it as many as there are processors and games."""

    @property
    def observation_space(self) -> Box:
        """Frames first, as ale-py lays them out, or colours last."""
        size = (self.height, self.width)
        shape = (self.frame_stack, *size) if self.grayscale else (*size, 3 * self.frame_stack)
        return Box(shape, (0.0,), (255.0,), "uint8")

    def limit(self, max_timesteps: int | None) -> int:
        """The most decisions in a game."""
        own = max(1, self.max_frames // self.frame_skip)
        return own if max_timesteps is None else min(own, max_timesteps)


def settings_of(spec: EnvironmentSpec) -> AtariSettings:
    """The settings of a spec, checked."""
    return validate(AtariSettings, spec.settings, source=f'environment "{spec.id}"', path="environment.settings")


def make_single(spec: EnvironmentSpec, render_mode: str | None) -> tuple[gymnasium.Env, int]:
    """(one game with the observations of `AtariEnvs`, but the full score and no end at lost lives; its time limit)."""
    from steppe.envs.gymnasium._atari_single import SingleAtari

    settings = settings_of(spec)
    return SingleAtari(find_spec(spec.id).kwargs["game"], settings, render_mode), settings.limit(None)


class AtariEnvs:
    """N games in threads of ale-py; a game that ends is followed by the next one in the same step.

    A lost life ends an episode for the learner but not the game, so `EnvStep.terminated` and `EnvStep.finished` differ.
    """

    def __init__(self, spec: EnvironmentSpec, count: int, max_timesteps: int | None, repeat: int) -> None:
        self._id, self._settings = spec.id, settings_of(spec)
        if repeat != 1:
            raise UserError(
                f'environment "{spec.id}" repeats actions by its setting frame_skip; leave out repeat_actions'
            )
        if spec.vectorization in ("sync", "processes"):
            raise UserError(
                f'environment "{spec.id}" is stepped by threads of its own; leave out "vectorization", or write '
                '"backend": "gymnasium" to get whole frames'
            )
        game = find_spec(spec.id).kwargs["game"]
        try:
            self._envs: Any = _vector_env(game, count, self._settings)
        except Exception as error:
            raise EnvironmentFault(
                f'environment "{spec.id}" could not be made: {type(error).__name__}: {error}; check its settings'
            ) from error
        actions = Discrete(int(self._envs.single_action_space.n))
        self._limit = self._settings.limit(max_timesteps)
        self.description = EnvDescription(self._settings.observation_space, actions, self._limit)
        self._taken = 0
        self._none = np.zeros(count, bool)
        self._none.flags.writeable = False

    def reset(self, seed: int, observations: np.ndarray) -> None:
        """Starts new games, number i seeded with seed + i; observations: [N, ...]."""
        self._taken = 0
        count = len(observations)
        # ale-py's seeds have 32 bits, and negative ones mean no seed.
        seeds = (seed + np.arange(count)) % 2**31
        try:
            observed, info = self._envs.reset(seed=seeds)
        except Exception as error:
            raise self._fault(error) from error
        observations[:] = self._arranged(observed)
        self._frames = info["episode_frame_number"]
        self._deadlines = np.full(count, self._limit)
        self._next_deadline = self._limit

    def take(self, actions: np.ndarray) -> EnvStep:
        """One decision in each game; actions: [N]. The arrays are ale-py's, which allocates new ones in every step."""
        self._taken += 1
        try:
            observed, scores, terminated, _, info = self._envs.step(actions.astype(np.int64))
            observed = self._arranged(observed)
            successors, finished, truncated = observed, self._none, self._none
            frames = info["episode_frame_number"]
            if terminated.any():
                # The frame number continues after a lost life, and restarts after the end of a game.
                finished = terminated & (frames != self._frames + self._settings.frame_skip)
                if finished.any():
                    successors = observed.copy()
                    successors[finished] = self._arranged(info["final_obs"])[finished]
            self._frames = frames
            if self._taken >= self._next_deadline and (late := (self._deadlines <= self._taken) & ~finished).any():
                truncated, finished = late & ~terminated, finished | late
                observed = self._begin_anew(late)
        except Exception as error:
            raise self._fault(error) from error
        if finished is not self._none:
            self._deadlines[finished] = self._taken + self._limit
            self._next_deadline = int(self._deadlines.min())
        scores = scores.astype(np.float32)
        rewards = np.sign(scores) if self._settings.clip_rewards else scores
        return EnvStep(observed, rewards, terminated, truncated, successors, scores, finished)

    def close(self) -> None:
        """Drops ale-py's object, which ends its threads."""
        self._envs = None

    def _begin_anew(self, which: np.ndarray) -> np.ndarray:
        """Starts new games in `which` [N]; returns the observations of all [N, ...]."""
        observed, info = self._envs.reset(options={"reset_mask": which})
        self._frames = info["episode_frame_number"]
        return self._arranged(observed)

    def _arranged(self, observed: np.ndarray) -> np.ndarray:
        """Grey frames unchanged; [N, frames, height, width, 3] with the colours of all frames last."""
        if self._settings.grayscale:
            return observed
        return np.moveaxis(observed, 1, 3).reshape(len(observed), *self._settings.observation_space.shape)

    def _fault(self, error: Exception) -> EnvironmentFault:
        return EnvironmentFault(
            f'environment "{self._id}" at step {self._taken}: raised {type(error).__name__}: {error}; resume from the '
            "last checkpoint"
        )


class LossOfLife(gymnasium.Wrapper):
    """Ends an episode, or changes the reward, when a life is lost, as TensorForce's ALE environment did."""

    def __init__(self, env: gymnasium.Env, terminates: bool = False, reward: float = 0.0) -> None:
        super().__init__(env)
        self._terminates, self._reward = terminates, reward
        self._lives = 0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Starts a new game, with all lives."""
        obs, info = self.env.reset(**options)
        self._lives = info["lives"]
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step; terminates at a lost life if that is asked for."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if info["lives"] < self._lives:
            reward = float(reward) + self._reward
            terminated = terminated or self._terminates
        self._lives = info["lives"]
        return obs, reward, terminated, truncated, info


def _vector_env(game: str, count: int, settings: AtariSettings) -> Any:
    from ale_py.vector_env import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    return AtariVectorEnv(
        game,
        count,
        num_threads=settings.threads or 0,
        max_num_frames_per_episode=NO_LIMIT,
        repeat_action_probability=settings.repeat_action_probability,
        full_action_space=settings.full_action_space,
        autoreset_mode=AutoresetMode.SAME_STEP,
        img_height=settings.height,
        img_width=settings.width,
        grayscale=settings.grayscale,
        stack_num=settings.frame_stack,
        frameskip=settings.frame_skip,
        maxpool=settings.max_pool,
        noop_max=settings.no_op_max,
        # Its episodic_life starts a new game at each lost life; life_loss_info reports it and continues.
        episodic_life=False,
        life_loss_info=settings.episodic_life,
        # Returns need the full score, so rewards are clipped in this module.
        reward_clipping=False,
        use_fire_reset=settings.fire_at_start,
    )
