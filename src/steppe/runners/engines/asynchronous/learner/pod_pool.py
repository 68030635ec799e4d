"""The workers of a learner in a Pod: other Pods, which Kubernetes starts and replaces."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from pathlib import Path

from steppe.errors import EnvironmentFault, UserError
from steppe.files.durable import write_atomically
from steppe.runners.engines.asynchronous.learner.worker_pool import BATCHES_PER_DEATH, START_SECONDS, TEND_SECONDS
from steppe.runners.engines.asynchronous.learner.worker_server import WorkerServer
from steppe.runners.play.episodes import EpisodeRules
from steppe.runners.pods import CREW_FILE_VARIABLE, LEARNER_PORT, RollCall
from steppe.specs.allowed_modules import named_by
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.asynchronous import AsyncSpec

HUNG_REMEMBERED = 1_000
"""How many names of hanging workers are kept in the file; their Pods read it within seconds."""
SPARE_DEATHS = 10
"""The run fails after this many deaths beyond three for each worker; each received batch makes up for a part of one."""

log = logging.getLogger(__name__)


def in_pods(wishes: AsyncSpec) -> AsyncSpec:
    """The settings with the address at which other Pods look for a learner."""
    return wishes.model_copy(update={"address": f"0.0.0.0:{LEARNER_PORT}"})


class PodWorkerPool:
    """Writes the file that tells workers what to do, which the Pod hands out; Kubernetes starts and replaces them."""

    def __init__(self, spec: ExperimentSpec, rules: EpisodeRules, num_envs: int) -> None:
        self._spec, self._rules, self._num_envs = spec, rules, num_envs
        self._supervised = self._started = 0.0
        self._level = 0.0
        self._batches = self._lost = self._declined = 0
        self._has_warned = False
        self._roll_call = RollCall()

    def open(self) -> str:
        """All addresses of this Pod."""
        return "0.0.0.0"

    def start(self, server: WorkerServer, token: str | None) -> None:
        """Writes the file, so that workers may come from now on."""
        certificate = self._spec.asynchronous.tls_cert
        plan = {
            "certificate": None if certificate is None else Path(certificate).read_text(),
            "environment": self._rules.environment.model_dump(mode="json"),
            "num_envs": self._num_envs,
            "max_timesteps": self._rules.max_timesteps,
            "repeat_actions": self._rules.repeat_actions,
            "modules": sorted(named_by(self._spec).names),
        }
        self._plan, self._hung = plan, deque[str](maxlen=HUNG_REMEMBERED)
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
        self._warn_if_missing(now)
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

    def _warn_if_missing(self, now: float) -> None:
        if self._has_warned or now - self._started < START_SECONDS:
            return
        self._has_warned = True
        if self._membership.here < self._spec.num_workers:
            log.warning(
                "only %d of %d workers have joined after %d s; the cluster may have no room for more Pods",
                self._membership.here,
                self._spec.num_workers,
                START_SECONDS,
            )
