"""A worker: acts in its environments with the learner's newest policy and sends the timesteps, without JAX or Ray.

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
from steppe.runners.engines.asynchronous.wire.batches import BatchFormat, to_message
from steppe.runners.engines.asynchronous.wire.protocol import (
    ALIVE_SECONDS,
    LISTEN_SECONDS,
    LONGEST_SENTENCE,
    SAY_SECONDS,
    TOKEN_VARIABLE,
    LogLines,
)
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.runners.engines.asynchronous.worker.actors import Actor, OwnActor, PolicyActor
from steppe.runners.engines.asynchronous.worker.batch_collector import BatchCollector
from steppe.runners.engines.asynchronous.worker.connection import (
    LearnerAddress,
    LearnerConnection,
    TaskChanged,
    Welcome,
    decline,
    log_message,
)
from steppe.runners.engines.asynchronous.worker.given_environment import environment_of
from steppe.runners.engines.host.preprocessed_envs import PreprocessedHostEnvs
from steppe.specs.allowed_modules import AllowedModules
from steppe.specs.running.connections import split_address, written_address
from steppe.specs.user_code import has_traceback, traceback_of

log = logging.getLogger(__name__)

TRACEBACK_LINES = 60
"""How many lines of a traceback are sent to the learner: the last ones, with the user's code."""


class AsyncWorker:
    """Collects for an `AsyncLearner`, or for an experiment in run mode async that listens at an address.

    `learner_address` is "host:port" or (host, port).
    `env_wrapper` is a `gymnasium.Env`, a callable that makes one, or the name of an environment. `policy` is only
    needed if the learner has a policy of the user's own: an object with `act(observations, greedy)` and
    `set_weights(weights)`. The learner's token comes from `token_file` or the variable
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
        self._learner = LearnerAddress(
            address, token, trust_in(tls_ca), reconnect, allowed=AllowedModules.of(allow_modules)
        )
        self._environment = environment_of(env_wrapper, num_envs)
        self._num_envs, self._policy = num_envs, policy

    def work(self) -> int:
        """Works until the learner is done; returns the number of timesteps.

        If the learner cannot be reached for `reconnect` seconds, a `LearnerLost` is raised.
        """
        return work(self._learner, lambda: GymnasiumEnvs(self._environment, self._num_envs), self._policy)


def work(
    learner: LearnerAddress,
    make_envs: Callable[[], GymnasiumEnvs],
    policy: Any = None,
    *,
    has_made: Callable[[], object] = lambda: None,
    take_lines: Callable[[], LogLines] = list,
) -> int:
    """Works until the learner is done; returns the number of timesteps.

    `has_made` is called once the environments exist; `take_lines` returns the lines printed since its last call.
    """
    with _made(learner, make_envs) as envs:
        has_made()
        spaces = envs.observation_space, envs.action_space
        link = LearnerConnection(learner, spaces, envs.num_envs)
        loop = WorkerLoop(link, envs, policy, take_lines)
        try:
            link.join()
            while True:
                try:
                    loop.begin()
                    loop.run()
                except TaskChanged:
                    log.warning("the learner has another task now; this worker begins anew")
        except Over as over:
            log.info("the learner is done: %s", over)
            return loop.timesteps
        except Malformed as error:
            raise SteppeError(
                f"the learner at {learner.address} {error}; install the same version of Steppe on both sides"
            ) from None
        except Exception as error:
            sentence = (str(error) or type(error).__name__)[:LONGEST_SENTENCE]
            link.complain(sentence, [*take_lines(), *_traceback_lines(error)])
            raise
        finally:
            link.close()


def _traceback_lines(error: Exception) -> LogLines:
    """The end of the error's traceback for the learner's log, if the user's code raised it."""
    if isinstance(error, SteppeError) and not has_traceback(error):
        return []
    lines = traceback_of(error.__cause__ or error).splitlines()
    return [(logging.ERROR, line) for line in lines[-TRACEBACK_LINES:]]


def _made(learner: LearnerAddress, make_envs: Callable[[], GymnasiumEnvs]) -> GymnasiumEnvs:
    """Makes the environments; a learner that waits for this worker is told if that fails."""
    try:
        return make_envs()
    except EnvironmentAway:
        # The simulator may still be starting: the worker is started again until it is there.
        raise
    except Exception as error:
        decline(learner, "user" if isinstance(error, UserError) else "fault", str(error) or type(error).__name__)
        raise


class WorkerLoop:
    """Collects and sends batch after batch; may begin again for another learner."""

    def __init__(
        self, link: LearnerConnection, envs: GymnasiumEnvs, policy: Any, take_lines: Callable[[], LogLines]
    ) -> None:
        self._link, self._envs, self._policy, self._take_lines = link, envs, policy, take_lines
        self._session = ""
        self._sequence = 0
        self._listened = self._spoke = self._said = time.monotonic()
        self._earlier = 0
        self._collector: BatchCollector | None = None

    @property
    def timesteps(self) -> int:
        """The number of timesteps so far."""
        return self._earlier + (0 if self._collector is None else self._collector.timesteps)

    def begin(self) -> None:
        """Fetches the policy and starts episodes, as the learner's task says."""
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
        form = BatchFormat(task, envs.observation_space, envs.action_space)
        streams = np.random.SeedSequence(welcome.seed[0], spawn_key=(*welcome.seed[1:], welcome.number))
        self._earlier = self.timesteps
        self._collector = BatchCollector(seen, self._actor, task, form, np.random.default_rng(streams))
        self._collector.tick = self._tick

    def run(self) -> None:
        """Runs until `Over` or `TaskChanged` is raised, or the environment fails."""
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
        """Sends a message and applies the policy in the answer."""
        # A resumed learner may reach this worker's version again with other weights: the session tells them apart.
        answer = self._link.ask({**message, "op": op, "has": self._actor.version, "session": self._session})
        self._actor.take(answer)
        assert self._link.welcome is not None
        self._session = self._link.welcome.session
        self._spoke = time.monotonic()

    def _tick(self) -> None:
        """Between two steps: checks whether the run is over, sends a sign of life, and forwards the log."""
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
        if lines := self._take_lines():
            self._link.ask(log_message(lines))
        self._said = time.monotonic()


def _apply_rules(task: Task, envs: GymnasiumEnvs) -> None:
    """Applies the learner's time limit and action repeat; without any limit the default one holds."""
    envs.play_by(task.max_timesteps, task.repeat_actions)
    if envs.max_episode_steps is None:
        envs.play_by(DEFAULT_EPISODE_LIMIT, task.repeat_actions)


def _actor_for(welcome: Welcome, envs: GymnasiumEnvs, policy: Any, link: LearnerConnection) -> Actor:
    if welcome.task.policy is not None:
        return PolicyActor(welcome.task, envs.action_space)
    if policy is None:
        raise UserError(
            f"the learner at {link.address} has a policy of its own kind; give this worker one to act with: "
            "AsyncWorker(..., policy=...)"
        )
    return OwnActor(policy, envs.action_space)
