"""A worker: acts in its environments by the learner's newest policy, and sends what it saw. Needs neither JAX nor Ray.

AsyncWorker(learner_address="learner:6379", env_wrapper=MySimulator).work()
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.envs.registry import DEFAULT_EPISODE_LIMIT
from steppe.errors import EnvironmentAway, SteppeError, UserError
from steppe.net.credentials import read_token
from steppe.net.messagepack import Malformed
from steppe.policies.preprocessing import Preprocessing
from steppe.runners.engines.asynchronous.learner.inbox import Over
from steppe.runners.engines.asynchronous.wire.access import trust_in
from steppe.runners.engines.asynchronous.wire.batches import Form, to_message
from steppe.runners.engines.asynchronous.wire.constants import (
    ALIVE_SECONDS,
    LISTEN_SECONDS,
    LONGEST_SENTENCE,
    SAY_SECONDS,
    TOKEN_VARIABLE,
    Lines,
)
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.asynchronous.worker.acting import Actor, OwnActor, PolicyActor
from steppe.runners.engines.asynchronous.worker.batching import Collector
from steppe.runners.engines.asynchronous.worker.environments import environment_of
from steppe.runners.engines.asynchronous.worker.link import Door, Link, TaskChanged, Welcome, decline, said
from steppe.runners.engines.host.preprocessed_envs import PreprocessedHostEnvs
from steppe.specs.allowed_modules import AllowedModules
from steppe.specs.running.connections import split_address, written_address
from steppe.specs.user_code import has_traceback, traceback_of

log = logging.getLogger(__name__)

TRACEBACK_LINES = 60
"""As many lines of a traceback are told to the learner: the last ones, where the user's code is."""


class AsyncWorker:
    """Collects for an `AsyncLearner`, or for an experiment in run mode async that listens at an address.

    `learner_address` is "host:port" or (host, port).
    `env_wrapper` is what wraps a simulator as a `gymnasium.Env`: such an object, a callable that makes one, or the name
    of an environment. `policy` is only needed where the learner has a policy of its own kind: an object with
    `act(observations, greedy)` and `set_weights(weights)`. The learner's token comes from `token_file` or the variable
    STEPPE_LEARNER_TOKEN; `tls_ca` names the certificate to trust, and turns encryption on. Layers of the learner's
    network may only come from Python modules in `allow_modules`; a learner that names others is refused.
    """

    def __init__(
        self,
        learner_address: str | tuple[str, int],
        env_wrapper: Any,
        *,
        num_envs: int = 1,
        policy: Any = None,
        token_file: str | Path | None = None,
        tls_ca: str | Path | None = None,
        reconnect: float = 300.0,
        allow_modules: str | Iterable[str] = (),
    ) -> None:
        try:
            address = written_address(learner_address)
            split_address(address)
        except ValueError as error:
            raise UserError(f'wrong learner_address "{learner_address}"; {error}') from None
        token = read_token(token_file, TOKEN_VARIABLE)
        self._door = Door(address, token, trust_in(tls_ca), reconnect, allowed=AllowedModules.of(allow_modules))
        self._environment = environment_of(env_wrapper, num_envs)
        self._num_envs, self._policy = num_envs, policy

    def work(self) -> int:
        """Works until the learner is done; how many timesteps were taken.

        While the learner cannot be reached it is looked for, and after `reconnect` seconds a `LearnerLost` is raised.
        """
        return work(self._door, lambda: GymnasiumEnvs(self._environment, self._num_envs), self._policy)


def work(
    door: Door,
    make_envs: Callable[[], GymnasiumEnvs],
    policy: Any = None,
    *,
    has_made: Callable[[], object] = lambda: None,
    heard: Callable[[], Lines] = list,
) -> int:
    """Works until the learner is done; how many timesteps were taken.

    `has_made` hears that there are environments; `heard` gives what was printed since it was last asked.
    """
    with _made(door, make_envs) as envs:
        has_made()
        spaces = envs.observation_space, envs.action_space
        link = Link(door, spaces, envs.num_envs)
        shift = Shift(link, envs, policy, heard)
        try:
            link.join()
            while True:
                try:
                    shift.begin()
                    shift.run()
                except TaskChanged:
                    log.warning("the learner has another task now; this worker begins anew")
        except Over as over:
            log.info("the learner is done: %s", over)
            return shift.timesteps
        except Malformed as error:
            raise SteppeError(
                f"the learner at {door.address} {error}; install the same version of Steppe on both sides"
            ) from None
        except Exception as error:
            sentence = (str(error) or type(error).__name__)[:LONGEST_SENTENCE]
            link.complain(sentence, [*heard(), *_traceback_lines(error)])
            raise
        finally:
            link.close()


def _traceback_lines(error: Exception) -> Lines:
    """The end of its traceback for the learner's log, if the user's code raised it."""
    if isinstance(error, SteppeError) and not has_traceback(error):
        return []
    lines = traceback_of(error.__cause__ or error).splitlines()
    return [(logging.ERROR, line) for line in lines[-TRACEBACK_LINES:]]


def _made(door: Door, make_envs: Callable[[], GymnasiumEnvs]) -> GymnasiumEnvs:
    """The environments; a learner that waits for this worker is told why there will be none."""
    try:
        return make_envs()
    except EnvironmentAway:
        # A simulator that is not there yet is no reason to give up: whoever started this worker starts it again.
        raise
    except Exception as error:
        decline(door, "user" if isinstance(error, UserError) else "fault", str(error) or type(error).__name__)
        raise


class Shift:
    """Batch after batch, for one learner and, should it change, for the next."""

    def __init__(self, link: Link, envs: GymnasiumEnvs, policy: Any, heard: Callable[[], Lines]) -> None:
        self._link, self._envs, self._policy, self._heard = link, envs, policy, heard
        self._session = ""
        self._sequence = 0
        self._listened = self._spoke = self._said = time.monotonic()
        self._earlier = 0
        self._collector: Collector | None = None

    @property
    def timesteps(self) -> int:
        """How many were taken."""
        return self._earlier + (0 if self._collector is None else self._collector.timesteps)

    def begin(self) -> None:
        """Fetches the policy and starts episodes, as the learner's task has it."""
        welcome, envs = self._link.welcome, self._envs
        assert welcome is not None
        task = welcome.task
        _apply_rules(task, envs)
        self._actor = _actor_for(welcome, envs, self._policy, self._link)
        self._news("fetch", {})
        self._hand_on()
        seen: Any = envs
        if task.preprocessing is not None:
            seen = PreprocessedHostEnvs(envs, Preprocessing.from_json(task.preprocessing))
        form = Form(task, envs.observation_space, envs.action_space)
        streams = np.random.SeedSequence(welcome.seed[0], spawn_key=(*welcome.seed[1:], welcome.number))
        self._earlier = self.timesteps
        self._collector = Collector(seen, self._actor, task, form, np.random.default_rng(streams))
        self._collector.tick = self._tick

    def run(self) -> None:
        """Until `Over`, `TaskChanged`, or the environment fails."""
        collector = self._collector
        assert collector is not None
        evaluations: list[tuple[float, int]] = []
        while True:
            batch = collector.collect()
            self._sequence += 1
            batch.sequence, batch.evaluations = self._sequence, evaluations
            self._news("batch", to_message(batch))
            evaluations = collector.evaluate() if collector.evaluates_next else []

    def _news(self, op: str, message: dict[str, Any]) -> None:
        """Sends a message and takes the newest policy from the answer."""
        # A resumed learner may have counted its updates back to what this worker has: its name tells them apart.
        answer = self._link.ask({**message, "op": op, "has": self._actor.version, "session": self._session})
        self._actor.take(answer)
        assert self._link.welcome is not None
        self._session = self._link.welcome.session
        self._spoke = time.monotonic()

    def _tick(self) -> None:
        """Between two steps: hears whether it is over, shows that nothing is stuck, hands on what was printed."""
        now = time.monotonic()
        if now - self._listened < LISTEN_SECONDS:
            return
        self._listened = now
        self._link.listen()
        if now - self._spoke >= ALIVE_SECONDS:
            self._link.ask({"op": "alive"})
            self._spoke = time.monotonic()
        if now - self._said >= SAY_SECONDS:
            self._hand_on()

    def _hand_on(self) -> None:
        if lines := self._heard():
            self._link.ask(said(lines))
        self._said = time.monotonic()


def _apply_rules(task: Task, envs: GymnasiumEnvs) -> None:
    """An episode is what the learner says it is, and none goes on for ever."""
    envs.play_by(task.max_timesteps, task.repeat_actions)
    if envs.max_episode_steps is None:
        envs.play_by(DEFAULT_EPISODE_LIMIT, task.repeat_actions)


def _actor_for(welcome: Welcome, envs: GymnasiumEnvs, policy: Any, link: Link) -> Actor:
    if welcome.task.policy is not None:
        return PolicyActor(welcome.task, envs.action_space)
    if policy is None:
        raise UserError(
            f"the learner at {link.address} has a policy of its own kind; give this worker one to act with: "
            "AsyncWorker(..., policy=...)"
        )
    return OwnActor(policy, envs.action_space)
