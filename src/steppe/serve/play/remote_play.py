"""Plays environments through an endpoint: one thread and one connection for each runner, feedback as the game goes."""

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

from steppe.envs.interruption import EpisodesCut
from steppe.envs.registry import only_runs_compiled
from steppe.errors import UserError
from steppe.files.durable import storing
from steppe.runners.play.single_environment import Host, Twin
from steppe.serve.clients import Access, Described, connect
from steppe.serve.clients.patience import Patience, Patient, Stopped
from steppe.serve.messages.exchange import Answer, Feedback, Question
from steppe.serve.play.scores import Episode, Scores
from steppe.signals import handling
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box
from steppe.tracking.metrics import MetricsWriter

FeedbackMode = Literal["episode", "step", "none"]
SHOW_SECONDS = 0.2
"""How often the display hears that time goes by, at least."""
JOIN_SECONDS = 10.0
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
"""Variables of which one is set where there is a screen, or where somebody does without."""


@dataclass(frozen=True)
class Plan:
    """What is played, and how."""

    environment: EnvironmentSpec
    episodes: int
    runners: int = 1
    feedback: FeedbackMode = "episode"
    """One reward when an episode is over, its return; or each as it comes."""
    deterministic: bool | None = None
    """Whether the best action is asked for, or a drawn one; None: as the endpoint thinks best."""
    seed: int = 0
    max_timesteps: int | None = None
    patience: float = 60.0
    """For how many seconds an endpoint that is away is tried again."""
    render: bool = False
    """Whether the first runner's environment is shown in a window."""


@dataclass(frozen=True)
class Played:
    """How it ended."""

    scores: Scores
    described: Described
    was_stopped: bool
    """Whether Ctrl-C ended it before all episodes were played."""
    tries: int
    """How often something was sent again because the endpoint was away."""
    uncounted: int
    """How many rewards may be lost: they could not be sent again, or the endpoint no longer knew what they are for."""


def describe(protocol: str, access: Access, patience: float, tell: Callable[[str], None]) -> Described:
    """What an endpoint says of itself; waits for it where it is away."""
    waiting = Patience(access, patience, threading.Event(), tell)
    with contextlib.closing(Patient(connect(protocol, access), waiting)) as client:
        return client.describe()


def play(
    plan: Plan,
    protocol: str,
    access: Access,
    folder: Path,
    show: Callable[[Scores], None] = lambda scores: None,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Played:
    """Plays all episodes, or those that are over before Ctrl-C; a record of each goes to metrics.jsonl in `folder`."""
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    crew = _Crew(plan, protocol, access, tell)
    with MetricsWriter(folder) as metrics:
        # Later it would have to share the processor with the runners, and nothing would be shown meanwhile.
        scores = _play(crew, metrics, Scores(plan.episodes), show)
    return Played(scores, crew.described, scores.episodes < plan.episodes, crew.patience.tries, crew.uncounted)


def _play(crew: _Crew, metrics: MetricsWriter, scores: Scores, show: Callable[[Scores], None]) -> Scores:
    """The scores, once the last runner has ended."""
    with crew, _heeding_ctrl_c(crew.stop):
        for event in crew.events():
            if isinstance(event, Episode):
                metrics.write(scores.add(event))
            elif isinstance(event, _Abandoned):
                scores.abandoned += 1
            show(scores)
    return scores


@contextlib.contextmanager
def _heeding_ctrl_c(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C calls `stop`, so that nothing is cut off that is being written; the second is as usual."""
    was_pressed = False

    def heed(number: int, frame: Any) -> None:
        nonlocal was_pressed
        if was_pressed:
            raise KeyboardInterrupt
        was_pressed = True
        stop()

    with handling(heed, signal.SIGINT):
        yield


class _Abandoned:
    """An episode that could not be played to its end."""


class _Crew:
    """The runners: threads that take the next episode as soon as they are through with one."""

    def __init__(self, plan: Plan, protocol: str, access: Access, tell: Callable[[str], None]) -> None:
        self._plan, self._protocol, self._access = plan, protocol, access
        self._stop = threading.Event()
        self._events: queue.Queue[Any] = queue.Queue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._tell = tell
        self.patience = Patience(access, plan.patience, self._stop, tell)
        self.uncounted = 0
        self.described = self._look()
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"runner {i}", daemon=True)
            for i in range(min(plan.runners, plan.episodes))
        ]

    def __enter__(self) -> _Crew:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Ends all runners after the answer they wait for; `events` still has what they did until then."""
        self._stop.set()

    def events(self) -> Iterator[Any]:
        """Episodes as they end, and None now and then; ends when the last runner does, raises what went wrong."""
        running, deadline = len(self._threads), float("inf")
        while running and time.monotonic() < deadline:
            if self._stop.is_set():
                # One that waits for an answer that does not come is not waited for in turn.
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

    def _look(self) -> Described:
        """Finds out, before anything is played, whether this endpoint and this environment fit together."""
        if self._plan.render:
            _check_window(self._plan.environment)
        with contextlib.closing(Patient(connect(self._protocol, self._access), self.patience)) as client:
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
                    f"episodes of {self._plan.environment.id} have no end; give one by --max-timesteps-per-episode"
                )
        return described

    def _run(self, number: int) -> None:
        """A runner's life."""
        client = Patient(connect(self._protocol, self._access), self.patience)
        try:
            runner = _Runner(self._plan, number, client, self.described)
            with runner.env:
                while not self._stop.is_set() and next(self._numbers) < self._plan.episodes:
                    while (episode := runner.episode(self._stop)) is None:
                        self._events.put(_Abandoned())
                    self._events.put(episode)
            self._events.put(None)
        except Stopped:
            self._events.put(None)
        except BaseException as error:
            self._events.put(error)
        finally:
            client.close()
            with self._lock:
                self.uncounted += client.uncounted


class _Runner:
    """One environment and one connection."""

    def __init__(self, plan: Plan, number: int, client: Patient, described: Described) -> None:
        self._plan, self._number, self._client = plan, number, client
        self._feedback: FeedbackMode = plan.feedback if described.takes_feedback else "none"
        self.env = _environment(plan, is_shown=plan.render and number == 0)
        # Neighbouring seeds would give the second environment of one runner to the next.
        seed = int(np.random.SeedSequence([plan.seed, number]).generate_state(1)[0])
        self._observations = self.env.reset(seed)

    def episode(self, stop: threading.Event) -> Episode | None:
        """Plays one to its end; None where it was cut, and its reward is then told to nobody."""
        sequence, score, length = uuid.uuid4().hex, 0.0, 0
        latencies: list[float] = []
        while True:
            if stop.is_set():
                raise Stopped
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
                return self._ended(answer, score, length, latencies)

    def _actions(self, answer: Answer) -> np.ndarray:
        """Actions [1, ...] as the environment takes them; choices are whole numbers, however they were sent."""
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

    def _tell(self, answer: Answer, sequence: str, reward: float, score: float, is_over: bool, length: int) -> None:
        if self._feedback == "step":
            feedback = Feedback(reward, answer.id, sequence, is_over, f"{sequence}-{length}")
        elif self._feedback == "episode" and is_over:
            feedback = Feedback(score, None, sequence, True, f"{sequence}-return")
        else:
            return
        self._client.feedback(feedback)

    def _ended(self, answer: Answer, score: float, length: int, latencies: list[float]) -> Episode:
        route = "/".join(f"{name}={branch}" for name, branch in answer.route)
        propensity = answer.propensity if np.isfinite(answer.propensity) else None
        labels = (route or answer.policy, answer.policy, answer.version, propensity)
        return Episode(self._number, score, length, *labels, tuple(latencies))


def _check_window(environment: EnvironmentSpec) -> None:
    """Says what keeps an environment from being shown here: without a screen, MuJoCo's window would end the process."""
    if only_runs_compiled(environment):
        raise UserError(f'environment "{environment.id}" only runs compiled and has no window; leave out --render')
    if sys.platform.startswith("linux") and not any(os.environ.get(variable) for variable in SCREENS):
        raise UserError(
            "--render shows a window, and this machine has no screen (neither DISPLAY nor WAYLAND_DISPLAY is set); "
            "leave it out, or film an episode with: steppe record"
        )


def _environment(plan: Plan, *, is_shown: bool = False) -> Host | Twin:
    """Gymnasium's, where there is one: a single compiled one is no faster."""
    if is_shown:
        return Host(plan.environment, plan.max_timesteps, render_mode="human")
    return (Twin if only_runs_compiled(plan.environment) else Host)(plan.environment, plan.max_timesteps)
