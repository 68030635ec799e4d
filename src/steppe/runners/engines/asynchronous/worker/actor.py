"""A worker as a Ray actor: a process that Ray places on some machine. Importing this needs neither JAX nor Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Placement:
    """All that a worker of an experiment needs to know; plain values, for Ray to carry."""

    address: str
    token: str | None
    certificate: str | None
    """The learner's own (PEM), where it encrypts."""
    name: str
    environment: dict[str, Any]
    num_envs: int
    max_timesteps: int | None
    repeat_actions: int
    reconnect: float
    paths: tuple[str, ...]
    """Where the driver finds modules, such as the one with the environment."""
    modules: Sequence[str] = ()
    """Those that the experiment's own spec names, which layers of its network may be imported from."""


NICENESS = 10
"""How much workers yield to other programs: dozens of them would leave next to nothing to a learner beside them."""


class Ending(NamedTuple):
    """How a worker came to its end: "done", or with a mistake of the "user", or a "fault"."""

    kind: str
    sentence: str = ""


class WorkerActor:
    """Works in its second call, until the learner is done."""

    def arrive(self) -> None:
        """Answers once Ray has found a place for its process."""

    def work(self, placement: Placement, has_made: Callable[[], object] = lambda: None) -> Ending:
        """Tells `has_made` that there are environments, then works until the learner is done.

        Errors come back as sentences: not every exception survives the way to another process.
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
    from steppe.runners.engines.asynchronous.wire.constants import MOST_LINES
    from steppe.runners.engines.asynchronous.worker.link import Door
    from steppe.runners.engines.asynchronous.worker.worker import work
    from steppe.runners.ray.log_capture import Listening
    from steppe.specs.allowed_modules import AllowedModules
    from steppe.specs.environment import EnvironmentSpec

    tls = None if placement.certificate is None else trust_only(placement.certificate)
    allowed = AllowedModules.of(placement.modules)
    door = Door(placement.address, placement.token, tls, placement.reconnect, placement.name, allowed)
    environment = EnvironmentSpec.model_validate(placement.environment)
    rules = (placement.num_envs, placement.max_timesteps, placement.repeat_actions)
    listening = Listening(MOST_LINES, passes_on=True)
    with listening:
        work(door, lambda: GymnasiumEnvs(environment, *rules), has_made=has_made, heard=listening.heard)
