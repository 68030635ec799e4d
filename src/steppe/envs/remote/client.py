"""Environments in servers, stepped together: `{"type": "remote", "address": "host:port"}`."""

from __future__ import annotations

import logging

import numpy as np

from steppe.envs._base import EpisodesCut
from steppe.envs.gymnasium._sync import EnvDescription, NumberCheck, StepBuffers, fault_of
from steppe.envs.gymnasium.vector import EnvStep, allocate
from steppe.envs.remote.link import ServerBusy, ServerLost, shares
from steppe.errors import EnvironmentAway, EnvironmentFault, UserError
from steppe.net.backoff import Backoff
from steppe.net.credentials import client_tls, read_token
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.running.connections import RemoteSettings

log = logging.getLogger(__name__)


class RemoteEnvs:
    """N environments in one server or spread over several; a step takes one message each way for each server.

    If a connection breaks, all are reconnected and all episodes restart, which `EpisodesCut` reports.
    """

    def __init__(self, spec: EnvironmentSpec, count: int, max_timesteps: int | None, repeat: int) -> None:
        self._settings = RemoteSettings(**spec.settings)
        self._rules = (max_timesteps, repeat)
        self._credentials = (read_token(self._settings.token_file), client_tls(self._settings))
        self._links = shares(self._settings.servers, count, self._settings.timeout)
        self._seed = self._taken = self._restarts = 0
        try:
            self.description: EnvDescription = self._open()
        except ServerLost as lost:
            self._drop()
            raise self._unreachable(lost) from None
        except BaseException:
            self._drop()
            raise
        self._check = NumberCheck(self.description.observation_space)
        self._buffers = [allocate(self.description.observation_space, count) for _ in range(2)]

    def reset(self, seed: int, observations: np.ndarray) -> None:
        """Seeds environment i with seed + i; observations: [N, ...]."""
        self._seed, self._taken = seed, 0
        try:
            self._begin(seed, observations)
        except ServerLost as lost:
            self._recover(lost, observations)

    def take(self, actions: np.ndarray) -> EnvStep:
        """One decision in each environment; raises `EpisodesCut` if a connection broke and all episodes restarted."""
        self._taken += 1
        self._buffers.reverse()
        out = self._buffers[0]
        try:
            for link in self._links:
                link.ask_step(actions[link.rows])
            rests = [link.take_step(StepBuffers(*(array[link.rows] for array in out))) for link in self._links]
        except ServerLost as lost:
            self._recover(lost, out.next_observations)
            raise EpisodesCut(
                f"{lost.link}: its connection broke at step {self._taken} ({lost}) and was made again, which cut its "
                "episodes; resume from the last checkpoint",
                out.next_observations,
            ) from None
        observations, successors, rewards, terminated, truncated = out
        self._check(successors, rewards, self._fault)
        ended = terminated | truncated
        began = [rest.began for rest in rests if rest.began is not None]
        scores = self._joined([rest.scores for rest in rests], rewards)
        finished = self._joined([rest.finished for rest in rests], ended)
        if scores is not rewards:
            self._check(successors[:0], scores, self._fault)
        if not began:
            return EnvStep(successors, rewards, terminated, truncated, successors, scores, finished)
        observations[:] = successors
        observations[ended] = np.concatenate(began)
        for i in np.flatnonzero(ended).tolist():
            self._check.row(observations[i], lambda what, i=i: self._fault(i, what + " when it was reset"))
        return EnvStep(observations, rewards, terminated, truncated, successors, scores, finished)

    def close(self) -> None:
        """Asks the servers to close their environments; may be called again."""
        for link in self._links:
            link.close()

    def _open(self) -> EnvDescription:
        """Connects to every server; returns the common description of their environments."""
        for link in self._links:
            link.open(*self._credentials, *self._rules)
            if link.description != self._links[0].description:
                raise UserError(
                    f"{link} has other spaces or time limits than {self._links[0]}; serve the same environment at both"
                )
        return self._links[0].description

    def _begin(self, seed: int, observations: np.ndarray) -> None:
        for link in self._links:
            # Seeds too large for a message wrap around.
            link.ask_reset((seed + link.rows.start) % 2**63)
        for link in self._links:
            link.take_reset(observations[link.rows])
        for i, row in enumerate(observations):
            self._check.row(row, lambda what, i=i: self._fault(i, what + " when it was reset"))

    def _recover(self, lost: ServerLost, observations: np.ndarray) -> None:
        """Reconnects with exponential back-off, and writes the first observations of new episodes."""
        log.warning("%s: its connection broke at step %d (%s); connecting again", lost.link, self._taken, lost)
        backoff, reason = Backoff(self._settings.reconnect), lost
        while True:
            self._drop()
            # A new seed, since the same episodes would be played again after every break otherwise.
            self._restarts += 1
            seed = int(np.random.SeedSequence([self._seed % 2**63, self._restarts]).generate_state(1)[0])
            try:
                if self._open() != self.description:
                    raise UserError(f"{self._links[0]} has other spaces or time limits than before it was lost")
                self._begin(seed, observations)
            except ServerLost as again:
                reason = again
            except BaseException:
                self._drop()
                raise
            else:
                log.warning("%s: connected again; all episodes have started anew", lost.link)
                return
            if not backoff.wait():
                raise self._unrecovered(reason) from None

    def _joined(self, parts: list[np.ndarray | None], default: np.ndarray) -> np.ndarray:
        """The servers' shares as one array [N], missing ones from `default`; `default` itself if all are missing."""
        if all(part is None for part in parts):
            return default
        shares = zip(self._links, parts, strict=True)
        return np.concatenate([default[link.rows] if part is None else part for link, part in shares])

    def _drop(self) -> None:
        for link in self._links:
            link.drop()

    def _fault(self, i: int, what: str) -> EnvironmentFault:
        link = next(link for link in self._links if i < link.rows.stop)
        return fault_of(f"{link} (number {i})", self._taken, what)

    def _unreachable(self, lost: ServerLost) -> UserError:
        address = lost.link.address
        if isinstance(lost, ServerBusy):
            return UserError(f"the environment server at {address} is full: {lost}")
        if lost.link.asked:
            return UserError(
                f'the environment server at {address} hung up when it was asked "{lost.link.asked}" ({lost}); if it is '
                "served with TLS, name the file of its certificate in tls_ca"
            )
        return EnvironmentAway(
            f"cannot reach an environment server at {address} ({lost}); start one there with: steppe env serve "
            f"ENVIRONMENT --port {address.rpartition(':')[2]}"
        )

    def _unrecovered(self, lost: ServerLost) -> EnvironmentFault:
        return EnvironmentFault(
            f"{lost.link}: its connection broke at step {self._taken} and could not be made again within "
            f"{self._settings.reconnect:g} s ({lost}); start its server, then resume from the last checkpoint"
        )
