"""A learner in a program of its own, for workers that come from anywhere.

AsyncLearner(policy="sac", replay=100_000, address="0.0.0.0:6379", folder="run", total_timesteps=1_000_000).run()
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from steppe.errors import UserError
from steppe.files.held_folder import HeldFolder
from steppe.records import checkpoints
from steppe.records.checkpoints import Checkpoint
from steppe.runners._base import Progress, RunOutcome
from steppe.runners.engines.asynchronous.cores._base import Core
from steppe.runners.engines.asynchronous.learner.engine import AsyncEngine
from steppe.runners.engines.asynchronous.learner.progress_lines import ProgressLines
from steppe.runners.engines.asynchronous.learner.worker_pool import UnmanagedPool
from steppe.runners.engines.asynchronous.learner.worker_server import WorkerServer, open_server
from steppe.runners.engines.asynchronous.wire.access import LearnerAccess, access_from
from steppe.runners.engines.asynchronous.wire.board import Spaces
from steppe.runners.engines.asynchronous.wire.task import LONGEST_EPISODE, TIMESTEPS, Task
from steppe.spec_files import load_experiment
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.running.connections import split_address, written_address

ENVIRONMENT = "workers"
"""The environment's name in the experiment if only the workers know it."""
OWN = "own"
"""The agent's name in the experiment if the policy is the user's own."""
BASIS = {"name": "learner", "environment": ENVIRONMENT, "video": False, "final_evaluation": None, "run_mode": "async"}
"""The defaults of its experiment."""
_STARTS_NOBODY = "it starts no processes, and whoever comes works for it; leave it out"
NOT_HERE = {
    "evaluation": (
        "it has no environment to play in; its workers play greedy episodes, as many as asynchronous.evaluation_share "
        "says"
    ),
    "final_evaluation": "it has no environment to play in; leave it out, and evaluate the policy that it leaves",
    "video": "it has no environment to film; leave it out, and film with the policy that it leaves",
    "run_mode": 'it knows none but "async"; leave it out',
    "num_workers": "it starts none, and takes in as many as come; leave it out",
    "num_parameter_servers": "it holds all parameters itself; leave it out",
    "distributed": 'that is for run mode "distributed"; leave it out',
    "ray": _STARTS_NOBODY,
    "platform": _STARTS_NOBODY,
    "cluster": _STARTS_NOBODY,
    "kubernetes": _STARTS_NOBODY,
}
"""Fields that only have a meaning if Steppe starts the workers -> the reason and the alternative."""
NOT_HERE_EITHER = {
    "address": "where it listens is its own argument; write AsyncLearner(..., address=...)",
    "reconnect": "each worker says for how long it looks for its learner; write AsyncWorker(..., reconnect=...)",
}
"""The same for the fields of `asynchronous`."""
WAIT_SECONDS = 0.2
"""How often a learner without workers checks whether it should stop."""

log = logging.getLogger(__name__)


class AsyncLearner:
    """Owns policy and replay memory, and learns from the timesteps that `AsyncWorker`s send.

    `policy` is an agent as experiment files have it, or an object of your own with the methods of `OwnPolicy`: act,
    learn, get_weights, set_weights. `replay` is, for an agent, how many timesteps are kept, or its `memory` settings;
    for a policy of your own an object with `add` and `sample`, such as `UniformReplay`. `address`, "host:port" or
    (host, port), is its address for workers; beyond this machine a token is needed, from `asynchronous.token_file` or
    STEPPE_LEARNER_TOKEN. On a machine with other users it makes one for itself, which workers of the same user find.
    Checkpoints, metrics and the policy go to `folder`. `fields` are those of an experiment: total_timesteps, network,
    seed, asynchronous, and so on. The first worker tells the observation and action spaces.
    """

    def __init__(
        self,
        policy: Any,
        replay: Any = None,
        *,
        address: str | tuple[str, int] = "127.0.0.1:6379",
        folder: str | Path = "steppe-runs/learner",
        **fields: Any,
    ) -> None:
        self._host, self._port = _where(address)
        self._folder = Path(folder)
        self._own: tuple[Any, Any] | None = None
        agent: Any = policy
        if not isinstance(policy, str | dict | AgentSpec):
            from steppe.runners.engines.asynchronous.cores.own_core import check_own

            check_own(policy, replay)
            agent, self._own = OWN, (policy, replay)
        elif replay is not None:
            agent = _with_memory(policy, replay)
        self.spec = _experiment(agent, fields)
        self._requested: str | None = None
        self._server: WorkerServer | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """The (host, port) that it listens at; None before it does."""
        return None if self._server is None else self._server.address

    def run(
        self, *, resume: bool | Literal["auto"] = False, on_progress: Callable[[Progress], None] | None = None
    ) -> RunOutcome:
        """Learns until a limit of the experiment is reached, or until it is asked to stop; the work is always saved.

        Ctrl-C and SIGTERM ask it to stop. With `resume` it continues from the newest checkpoint in the folder; "auto"
        does so if there is one. Without `on_progress` it prints a line to the standard error every ten seconds.
        """
        saved = checkpoints.list_checkpoints(self._folder)
        if saved and not resume:
            raise UserError(
                f"there is a run in {self._folder} already; go on with run(resume=True), or name a new folder"
            )
        checkpoint = checkpoints.load_latest(self._folder) if saved or resume is True else None
        options = self.spec.asynchronous
        access = access_from(options.token_file, options.tls_cert, options.tls_key)
        server = self._server = open_server(options, self._host, self._port, access)
        with _Signals(self.stop):
            try:
                log.info("listening for workers at %s:%d", *server.address)
                if on_progress is not None:
                    return self._learn(server, access, checkpoint, on_progress)
                lines = ProgressLines(self.spec.limits[1])
                lines.listens(*server.address, server.token_file)
                outcome = self._learn(server, access, checkpoint, lines)
                lines.ended(outcome)
                return outcome
            finally:
                server.close("the learner has ended")

    def stop(self) -> None:
        """Makes `run` save and return; may be called from another thread or a signal handler."""
        self._requested = "stop"

    def _learn(
        self,
        server: WorkerServer,
        access: LearnerAccess,
        checkpoint: Checkpoint | None,
        show: Callable[[Progress], None],
    ) -> RunOutcome:
        from steppe.runners.loop import TrainingLoop

        while (spaces := server.board.wait_for_spaces(WAIT_SECONDS)) is None:
            if self._requested is not None:
                return RunOutcome("stopped", "asked to stop before the first worker came", 0, 0, 0, None, 0.0, [])
        engine = AsyncEngine(self._core(spaces), lambda host: (server, access), UnmanagedPool())
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with closing(HeldFolder(self._folder)) as held:
                return TrainingLoop(self.spec, engine, held, lambda: self._requested, show).run(checkpoint)
        finally:
            engine.close()

    def _core(self, spaces: Spaces) -> Core:
        options = self.spec.asynchronous
        if self._own is None:
            from steppe.runners.compilation import prepare_jax
            from steppe.runners.engines.asynchronous.learner.core_factory import make_core
            from steppe.runners.setup import xla_threads_of

            prepare_jax(xla_threads=xla_threads_of(self.spec))
            return make_core(self.spec, spaces, self.spec.max_timesteps_per_episode)
        from steppe.runners.engines.asynchronous.cores.own_core import OwnCore

        size = options.batch_timesteps
        least, most = (1, LONGEST_EPISODE) if size == "episode" else (size or TIMESTEPS, size or TIMESTEPS)
        task = Task(
            least=least,
            most=most,
            evaluation_share=options.evaluation_share,
            max_timesteps=self.spec.max_timesteps_per_episode,
            repeat_actions=self.spec.repeat_actions,
            patience=options.patience,
        )
        ratio = None if options.update_to_data in (None, "max") else float(options.update_to_data or 0.0)
        return OwnCore(*self._own, task, spaces, ratio)


class _Signals:
    """Turns Ctrl-C and SIGTERM into a request to stop, if this is the main thread."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, lambda *_: self._stop())

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _where(given: str | tuple[str, int]) -> tuple[str, int]:
    """The (host, port) to listen at; port 0 is any free one."""
    try:
        address = written_address(given)
        is_any = address.endswith(":0")
        host, port = split_address(f"{address.removesuffix('0')}1" if is_any else address)
    except ValueError as error:
        raise UserError(f'wrong address "{given}"; {error}') from None
    return host, 0 if is_any else port


def _experiment(agent: Any, fields: dict[str, Any]) -> ExperimentSpec:
    spec = load_experiment(None, {**BASIS, **fields, "agent": agent}, [], Path.cwd(), options=False)
    for part, reasons, start in ((spec, NOT_HERE, ""), (spec.asynchronous, NOT_HERE_EITHER, "asynchronous.")):
        for name, reason in reasons.items():
            if getattr(part, name) != BASIS.get(name, type(part).model_fields[name].default):
                raise UserError(f"an AsyncLearner cannot go by {start}{name}: {reason}")
    return spec


def _with_memory(policy: Any, replay: Any) -> dict[str, Any]:
    """The agent's settings with the memory among them."""
    words = {"type": policy} if isinstance(policy, str) else policy
    words = dict(words) if isinstance(words, dict) else {"type": words.type, **words.settings}
    if "memory" in words:
        raise UserError("the replay memory is given twice, by replay and by the agent's memory; give it once")
    if not isinstance(replay, int | dict):
        raise UserError(
            f'replay is a {type(replay).__name__}; for the agent "{words.get("type")}" give how many timesteps are '
            "kept, or the settings of its memory"
        )
    return words | {"memory": {"capacity": replay} if isinstance(replay, int) else replay}
