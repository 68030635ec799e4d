"""Plays environments through an endpoint, with one thread and one connection for each runner."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from steppe.envs._base import EpisodesCut
from steppe.envs.registry import only_runs_compiled
from steppe.errors import UserError
from steppe.files.durable import storing
from steppe.runners.play.play_envs import CompiledPlayEnvs, GymnasiumPlayEnvs
from steppe.serve.clients import EndpointAccess, ModelDescription, connect
from steppe.serve.clients.retries import EndpointRetries, PlayStopped, RetryingClient
from steppe.serve.messages.exchange import Feedback, PolicyAnswer, Question
from steppe.serve.play.route_scores import PlayScores, ScoredEpisode
from steppe.signals import handling
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box
from steppe.tracking.metrics import MetricsWriter

FeedbackMode = Literal["episode", "step", "none"]
SHOW_SECONDS = 0.2
"""Longest time between two updates of the display."""
JOIN_SECONDS = 10.0
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
"""At least one of these variables is set if there is a screen, or if the user draws without one."""


@dataclass(frozen=True)
class PlayPlan:
    """What to play, and how."""

    environment: EnvironmentSpec
    episodes: int
    runners: int = 1
    feedback: FeedbackMode = "episode"
    """"episode" sends each episode's return as one reward, "step" each reward as it comes."""
    deterministic: bool | None = None
    """Whether to ask for the best action instead of a drawn one; None: as the endpoint is configured."""
    seed: int = 0
    max_timesteps: int | None = None
    patience: float = 60.0
    """Seconds for which an endpoint that is away is tried again."""
    render: bool = False
    """Whether to show the first runner's environment in a window."""


@dataclass(frozen=True)
class PlayResult:
    """The result of `play`."""

    scores: PlayScores
    described: ModelDescription
    was_stopped: bool
    """Whether Ctrl-C ended it before all episodes were played."""
    tries: int
    """How often something was sent again because the endpoint was away."""
    uncounted: int
    """Rewards that may be lost: not sent again, or for an episode that the endpoint has forgotten."""


def describe(protocol: str, access: EndpointAccess, patience: float, tell: Callable[[str], None]) -> ModelDescription:
    """The endpoint's description; waits if it is away."""
    waiting = EndpointRetries(access, patience, threading.Event(), tell)
    with contextlib.closing(RetryingClient(connect(protocol, access), waiting)) as client:
        return client.describe()


def play(
    plan: PlayPlan,
    protocol: str,
    access: EndpointAccess,
    folder: Path,
    show: Callable[[PlayScores], None] = lambda scores: None,
    tell: Callable[[str], None] = lambda sentence: None,
) -> PlayResult:
    """Plays all episodes, or until Ctrl-C; writes a record of each to metrics.jsonl in `folder`."""
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    pool = _RunnerPool(plan, protocol, access, tell)
    with MetricsWriter(folder) as metrics:
        # Drawn before the runners start, since they would take the processor from the display.
        scores = _play(pool, metrics, PlayScores(plan.episodes), show)
    return PlayResult(scores, pool.described, scores.episodes < plan.episodes, pool.patience.tries, pool.uncounted)


def _play(
    pool: _RunnerPool, metrics: MetricsWriter, scores: PlayScores, show: Callable[[PlayScores], None]
) -> PlayScores:
    """Plays until the last runner has ended."""
    with pool, _stopping_on_ctrl_c(pool.stop):
        for event in pool.events():
            if isinstance(event, ScoredEpisode):
                metrics.write(scores.add(event))
            elif isinstance(event, _AbandonedEpisode):
                scores.abandoned += 1
            show(scores)
    return scores


@contextlib.contextmanager
def _stopping_on_ctrl_c(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C calls `stop`, so that no write is cut off; the second acts as usual."""
    was_pressed = False

    def handle(number: int, frame: Any) -> None:
        nonlocal was_pressed
        if was_pressed:
            raise KeyboardInterrupt
        was_pressed = True
        stop()

    with handling(handle, signal.SIGINT):
        yield


class _AbandonedEpisode:
    """An episode that could not be played to its end."""


class _RunnerPool:
    """Threads, each of which takes the next episode as soon as it has finished one."""

    def __init__(self, plan: PlayPlan, protocol: str, access: EndpointAccess, tell: Callable[[str], None]) -> None:
        self._plan, self._protocol, self._access = plan, protocol, access
        self._stop = threading.Event()
        self._events: queue.Queue[Any] = queue.Queue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._tell = tell
        self.patience = EndpointRetries(access, plan.patience, self._stop, tell)
        self.uncounted = 0
        self.described = self._check_endpoint()
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"runner {i}", daemon=True)
            for i in range(min(plan.runners, plan.episodes))
        ]

    def __enter__(self) -> _RunnerPool:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Stops all runners after the answer they wait for; `events` still yields their earlier episodes."""
        self._stop.set()

    def events(self) -> Iterator[Any]:
        """Yields episodes as they end, and None now and then; raises the error of a runner."""
        running, deadline = len(self._threads), float("inf")
        while running and time.monotonic() < deadline:
            if self._stop.is_set():
                # A runner that waits for an answer is not waited for much longer.
                deadline = min(deadline, time.monotonic() + JOIN_SECONDS)
            try:
                event = self._events.get(timeout=SHOW_SECONDS)
            except queue.Empty:
                yield None
                continue
            if event is None:
                running -= 1
            elif isinstance(event, BaseException):
                raise event
            else:
                yield event

    def _check_endpoint(self) -> ModelDescription:
        """Checks, before anything is played, that endpoint and environment fit together."""
        if self._plan.render:
            _check_window(self._plan.environment)
        with contextlib.closing(RetryingClient(connect(self._protocol, self._access), self.patience)) as client:
            described = client.describe()
        with _environment(self._plan) as env:
            for sentence in env.notices:
                self._tell(f"note: {sentence}")
            shape = env.observation_space.shape
            if described.shape is not None and described.shape != shape:
                raise UserError(
                    f'"{described.model}" at {self._access.url} takes observations of shape {described.shape}, but '
                    f"{self._plan.environment.id} shows {shape}; give the --environment it was trained in"
                )
            if env.max_episode_steps is None:
                raise UserError(
                    f"episodes of {self._plan.environment.id} have no time limit; set one by "
                    "--max-timesteps-per-episode"
                )
        return described

    def _run(self, number: int) -> None:
        """Plays episodes until all are played."""
        client = RetryingClient(connect(self._protocol, self._access), self.patience)
        try:
            runner = _Runner(self._plan, number, client, self.described)
            with runner.env:
                while not self._stop.is_set() and next(self._numbers) < self._plan.episodes:
                    while (episode := runner.episode(self._stop)) is None:
                        self._events.put(_AbandonedEpisode())
                    self._events.put(episode)
            self._events.put(None)
        except PlayStopped:
            self._events.put(None)
        except BaseException as error:
            self._events.put(error)
        finally:
            client.close()
            with self._lock:
                self.uncounted += client.uncounted


class _Runner:
    """One environment and one connection."""

    def __init__(self, plan: PlayPlan, number: int, client: RetryingClient, described: ModelDescription) -> None:
        self._plan, self._number, self._client = plan, number, client
        self._feedback: FeedbackMode = plan.feedback if described.takes_feedback else "none"
        self.env = _environment(plan, is_shown=plan.render and number == 0)
        # Mixed, since neighbouring seeds would give one runner's second environment to the next runner.
        seed = int(np.random.SeedSequence([plan.seed, number]).generate_state(1)[0])
        self._observations = self.env.reset(seed)

    def episode(self, stop: threading.Event) -> ScoredEpisode | None:
        """Plays one episode; None if the environment cut it off, in which case its reward is not sent."""
        sequence, score, length = uuid.uuid4().hex, 0.0, 0
        latencies: list[float] = []
        while True:
            if stop.is_set():
                raise PlayStopped
            question = Question(
                self._observations,
                id=f"{sequence}-{length}",
                sequence_id=sequence,
                sequence_start=length == 0,
                deterministic=self._plan.deterministic,
            )
            asked = time.perf_counter()
            try:
                answer = self._client.answer(question)
                latencies.append(time.perf_counter() - asked)
                step = self.env.step(self._actions(answer))
            except EpisodesCut as cut:
                self._observations = cut.observations
                return None
            reward, is_over = float(step.scores[0]), bool(step.finished[0])
            score, length = score + reward, length + 1
            self._observations = step.observations
            self._tell(answer, sequence, reward, score, is_over, length)
            if is_over:
                return self._played_episode(answer, score, length, latencies)

    def _actions(self, answer: PolicyAnswer) -> np.ndarray:
        """The actions [1, ...] as the environment takes them; choices become whole numbers."""
        space, actions = self.env.action_space, answer.actions
        if actions.size != math.prod(space.shape):
            raise UserError(
                f"the endpoint's actions have shape {actions.shape[1:]}, but {self._plan.environment.id} takes "
                f"{space.shape}; give the --environment it was trained in"
            )
        actions = actions.reshape(1, *space.shape)
        if isinstance(space, Box):
            return actions
        return np.rint(actions).astype(space.dtype)

    def _tell(
        self, answer: PolicyAnswer, sequence: str, reward: float, score: float, is_over: bool, length: int
    ) -> None:
        if self._feedback == "step":
            feedback = Feedback(reward, answer.id, sequence, is_over, f"{sequence}-{length}")
        elif self._feedback == "episode" and is_over:
            feedback = Feedback(score, None, sequence, True, f"{sequence}-return")
        else:
            return
        self._client.feedback(feedback)

    def _played_episode(self, answer: PolicyAnswer, score: float, length: int, latencies: list[float]) -> ScoredEpisode:
        route = "/".join(f"{name}={branch}" for name, branch in answer.route)
        propensity = answer.propensity if np.isfinite(answer.propensity) else None
        labels = (route or answer.policy, answer.policy, answer.version, propensity)
        return ScoredEpisode(self._number, score, length, *labels, tuple(latencies))


def _check_window(environment: EnvironmentSpec) -> None:
    """Refuses environments that cannot be shown here: without a screen, MuJoCo's window would end the process."""
    if only_runs_compiled(environment):
        raise UserError(f'environment "{environment.id}" only runs compiled and has no window; leave out --render')
    if sys.platform.startswith("linux") and not any(os.environ.get(variable) for variable in SCREENS):
        raise UserError(
            "--render shows a window, and this machine has no screen (neither DISPLAY nor WAYLAND_DISPLAY is set); "
            "leave it out, or film an episode with: steppe record"
        )


def _environment(plan: PlayPlan, *, is_shown: bool = False) -> GymnasiumPlayEnvs | CompiledPlayEnvs:
    """The environment in gymnasium if it exists there: a single compiled one is no faster."""
    if is_shown:
        return GymnasiumPlayEnvs(plan.environment, plan.max_timesteps, render_mode="human")
    return (CompiledPlayEnvs if only_runs_compiled(plan.environment) else GymnasiumPlayEnvs)(
        plan.environment, plan.max_timesteps
    )
