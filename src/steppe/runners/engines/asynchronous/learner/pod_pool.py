"""The workers of a learner in a Pod: other Pods, which Kubernetes starts and replaces."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque

from steppe.errors import EnvironmentFault, UserError
from steppe.files.durable import write_atomically
from steppe.runners.engines.asynchronous.learner.worker_pool import BATCHES_PER_DEATH, TEND_SECONDS, ManagedPool
from steppe.runners.engines.asynchronous.learner.worker_server import WorkerServer
from steppe.runners.play.episodes import EpisodeRules
from steppe.runners.pods import CREW_FILE_VARIABLE, LEARNER_PORT, RollCall
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.asynchronous import AsyncSpec

HUNG_REMEMBERED = 1_000
"""How many names of hanging workers are kept in the file; their Pods read it within seconds."""
SPARE_DEATHS = 10
"""The run fails after this many deaths beyond three for each worker; each received batch makes up for a part of one."""

log = logging.getLogger(__name__)


def in_pods(options: AsyncSpec) -> AsyncSpec:
    """The settings with the address at which other Pods look for a learner."""
    return options.model_copy(update={"address": f"0.0.0.0:{LEARNER_PORT}"})


class PodWorkerPool(ManagedPool):
    """Writes the workers' configuration file, which the Pod serves; Kubernetes starts and replaces the workers."""

    def __init__(self, spec: ExperimentSpec, rules: EpisodeRules, num_envs: int) -> None:
        super().__init__(spec, rules, num_envs)
        self._lost = self._declined = 0
        self._roll_call = RollCall()

    def open(self) -> str:
        """All addresses of this Pod."""
        return "0.0.0.0"

    def start(self, server: WorkerServer, token: str | None) -> None:
        """Writes the file; workers may join from now on."""
        self._plan, self._hung = self._configuration(), deque[str](maxlen=HUNG_REMEMBERED)
        self._write()
        self._membership, self._started = server.membership, time.monotonic()
        self._lost, self._declined = server.membership.lost, server.membership.declined
        self._note_joined()

    def supervise(self) -> EnvironmentFault | None:
        """Lets Pods end workers that hang, and returns a fault if workers keep failing.

        Workers that hang while they make their environment are ended by their own Pods, which report why.
        """
        now = time.monotonic()
        if now - self._supervised < TEND_SECONDS:
            return None
        self._supervised, members = now, self._membership
        self._note_joined()
        self._warn_if_missing(now, "the cluster may have no room for more Pods")
        if hung := members.take_hung():
            log.warning("workers that hang are replaced: %d", len(hung))
            self._hung.extend(sorted(hung))
            self._write()
        batches, lost, declined = members.batches, members.lost, members.declined
        if members.mistake and not batches:
            raise UserError(f"workers cannot make the environment: {members.mistake}")
        self._level += max(0, lost - self._lost) + declined - self._declined
        self._level = max(0.0, self._level - (batches - self._batches) / BATCHES_PER_DEATH)
        self._batches, self._lost, self._declined = batches, lost, declined
        if self._level > 3 * self._spec.num_workers + SPARE_DEATHS:
            said = members.complaint or "they were killed or ran out of memory"
            return EnvironmentFault(f"workers die faster than they can be replaced; the last one: {said}")
        return None

    def close(self) -> None:
        """Workers notice by themselves that the learner is gone."""

    def _write(self) -> None:
        if file := os.environ.get(CREW_FILE_VARIABLE):
            patience = self._spec.asynchronous.worker_timeout
            crew = {"plan": self._plan, "hung": list(self._hung), "worker_timeout": patience}
            write_atomically(file, json.dumps(crew))

    def _note_joined(self) -> None:
        wanted = self._spec.num_workers
        self._roll_call.note("worker", min(self._membership.here, wanted), wanted)
