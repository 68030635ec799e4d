"""A worker as a Ray actor: a process that Ray starts on some machine. Importing this needs neither JAX nor Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Placement:
    """The configuration of a worker of an experiment; plain values, for Ray to pickle."""

    address: str
    token: str | None
    certificate: str | None
    """The learner's own (PEM), if it encrypts."""
    name: str
    environment: dict[str, Any]
    num_envs: int
    max_timesteps: int | None
    repeat_actions: int
    reconnect: float
    paths: tuple[str, ...]
    """The driver's sys.path, for modules such as the one with the environment."""
    modules: Sequence[str] = ()
    """The modules named by the experiment's spec, from which layers of its network may be imported."""


NICENESS = 10
"""The nice value of workers: dozens of them would leave almost no CPU time to a learner beside them."""


class Ending(NamedTuple):
    """How a worker ended; `kind` is "done", "user" (a user's mistake) or "fault"."""

    kind: str
    sentence: str = ""


class WorkerActor:
    """The Ray actor; its second call lasts until the learner is done."""

    def arrive(self) -> None:
        """Returns once Ray has started the process."""

    def work(self, placement: Placement, has_made: Callable[[], object] = lambda: None) -> Ending:
        """Calls `has_made` once the environments exist, then works until the learner is done.

        Errors are returned as text: not every exception can be pickled.
        """
        from steppe.errors import SteppeError, UserError

        sys.path.extend(path for path in placement.paths if path not in sys.path)
        os.nice(max(0, NICENESS - os.nice(0)))
        try:
            _work(placement, has_made)
        except UserError as error:
            return Ending("user", str(error))
        except SteppeError as error:
            return Ending("fault", str(error))
        except Exception as error:
            return Ending("fault", f"{type(error).__name__}: {error}")
        return Ending("done")


def _work(placement: Placement, has_made: Callable[[], object]) -> None:
    from steppe.envs.gymnasium.vector import GymnasiumEnvs
    from steppe.runners.engines.asynchronous.wire.access import trust_only
    from steppe.runners.engines.asynchronous.wire.protocol import MOST_LINES
    from steppe.runners.engines.asynchronous.worker.async_worker import work
    from steppe.runners.engines.asynchronous.worker.connection import LearnerAddress
    from steppe.runners.ray.log_capture import LogCapture
    from steppe.specs.allowed_modules import AllowedModules
    from steppe.specs.environment import EnvironmentSpec

    tls = None if placement.certificate is None else trust_only(placement.certificate)
    allowed = AllowedModules.of(placement.modules)
    learner = LearnerAddress(placement.address, placement.token, tls, placement.reconnect, placement.name, allowed)
    environment = EnvironmentSpec.model_validate(placement.environment)
    rules = (placement.num_envs, placement.max_timesteps, placement.repeat_actions)
    capture = LogCapture(MOST_LINES, passes_on=True)
    with capture:
        work(learner, lambda: GymnasiumEnvs(environment, *rules), has_made=has_made, take_lines=capture.take_lines)
