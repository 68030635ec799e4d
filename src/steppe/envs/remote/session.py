"""The server's side of one learner's connection: makes environments, resets and steps them."""

from __future__ import annotations

import contextlib
import logging
import threading
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import SteppeError, UserError
from steppe.net import protocol
from steppe.net.admission import AdmittedConnection
from steppe.net.hello import PeerRefused
from steppe.net.messagepack import Malformed
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import action_dtype, to_json

MAKE_SECONDS = 60.0
"""The time from a learner's greeting to its request for environments; later it may be silent for long."""
ERROR_SECONDS = 10.0
"""The time for a learner to receive an error."""
LARGEST_NUMBER = 2**31 - 1
"""The most timesteps and repetitions that a learner may ask for."""

log = logging.getLogger(__name__)
_making = threading.Lock()
"""Environments are made one at a time, since imports and registrations are not thread-safe."""


class EnvironmentQuota:
    """Limits how many environments a server holds at once, over all connections."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> str | None:
        """Reserves room for `count` environments; returns the reason if there is not enough."""
        with self._lock:
            if self._taken + count > self.most:
                return f"{count} environments are asked for, {self._taken} of at most {self.most} are in use"
            self._taken += count
            return None

    def give_back(self, count: int) -> None:
        """Frees the room of `count` environments."""
        with self._lock:
            self._taken -= count


class EnvironmentSession:
    """Serves one connection until either side ends it."""

    def __init__(self, member: AdmittedConnection, spec: EnvironmentSpec, quota: EnvironmentQuota) -> None:
        self._member, self._peer, self._spec, self._quota = member, member.peer[0], spec, quota
        self._channel: protocol.Channel | None = None
        self._envs: GymnasiumEnvs | None = None
        self._count = 0
        self._is_stopped = False

    def run(self) -> None:
        """Serves from the welcome to the end; errors are reported to the learner if possible."""
        try:
            self._channel = channel = protocol.Channel(self._member.sock)
            if self._is_stopped:
                return
            channel.send(
                {"op": "welcome", "version": protocol.VERSION, "server": _server(), "environment": self._spec.id},
                ERROR_SECONDS,
            )
            log.info("%s: connected", self._peer)
            while (request := channel.receive(MAKE_SECONDS if self._envs is None else None))["op"] != "close":
                channel.send(self._answer(request, channel))
            self._release()
            channel.send({"op": "closed"})
        except (protocol.ChannelClosed, protocol.TooSlow) as error:
            log.info("%s: disconnected (%s)", self._peer, str(error) or "too slow")
        except PeerRefused as error:
            self._send_error(error.kind, str(error))
        except Malformed as error:
            self._send_error("protocol", f"the client {error}")
        except SteppeError as error:
            self._send_error("user" if isinstance(error, UserError) else "fault", str(error))
        except Exception as error:
            log.exception("%s: the server failed", self._peer)
            self._send_error("fault", f"the server failed: {type(error).__name__}: {error}")
        finally:
            self._release()
            (self._channel or self._member.sock).close()
            self._member.leave()

    def stop(self) -> None:
        """Ends the session after the current step; called from another thread."""
        self._is_stopped = True
        if self._channel is not None:
            self._channel.stop_receiving()

    def _answer(self, request: protocol.Message, channel: protocol.Channel) -> protocol.Message:
        envs = self._envs
        match request["op"]:
            case "step" if envs is not None:
                return self._step(envs, request)
            case "reset" if envs is not None:
                seed = protocol.read_count(request, "seed", least=0)
                return {"op": "began", "observations": protocol.to_wire(envs.reset(seed))}
            case "make" if envs is None:
                return self._make(request, channel)
            case op:
                raise Malformed(f'sent "{op[:50]}" when {"nothing was made yet" if envs is None else "all was made"}')

    def _make(self, request: protocol.Message, channel: protocol.Channel) -> protocol.Message:
        count = protocol.read_count(request, "count")
        max_timesteps = protocol.read_count(request, "max_timesteps", most=LARGEST_NUMBER, optional=True)
        repeat = protocol.read_count(request, "repeat", most=LARGEST_NUMBER)
        refusal = self._quota.take(count)
        if refusal is not None:
            raise PeerRefused("busy", refusal)
        self._count = count
        with _making:
            envs = self._envs = GymnasiumEnvs(self._spec, count, max_timesteps, repeat)
        longest_request, longest_answer = protocol.limits_for(envs.observation_space, envs.action_space, count)
        if max(longest_request, longest_answer) > protocol.LARGEST:
            raise UserError(f"{count} environments observe more than one message may hold; ask for fewer")
        channel.limit = longest_request
        self._actions = np.zeros((count, *envs.action_space.shape), action_dtype(envs.action_space))
        return {
            "op": "made",
            "observation_space": to_json(envs.observation_space),
            "action_space": to_json(envs.action_space),
            "limit": envs.max_episode_steps,
        }

    def _step(self, envs: GymnasiumEnvs, request: protocol.Message) -> protocol.Message:
        protocol.read_array(request, "actions", self._actions)
        step = envs.step(self._actions)
        answer = {
            "op": "stepped",
            "next_observations": protocol.to_wire(step.next_observations),
            "rewards": protocol.to_wire(step.rewards),
            "terminated": protocol.to_wire(step.terminated),
            "truncated": protocol.to_wire(step.truncated),
        }
        ended = step.terminated | step.truncated
        if ended.any():
            answer["observations"] = protocol.to_wire(step.observations[ended])
        if step.scores is not step.rewards:
            answer["scores"] = protocol.to_wire(step.scores)
        if (step.finished != ended).any():
            answer["finished"] = protocol.to_wire(step.finished)
        return answer

    def _send_error(self, kind: str, message: str) -> None:
        """Sends an error, the last message of a connection."""
        log.warning("%s: %s", self._peer, message)
        error = {"op": "error", "kind": kind, "message": message[: protocol.LONGEST_ERROR], "version": protocol.VERSION}
        if self._channel is not None:
            with contextlib.suppress(protocol.ChannelClosed, protocol.TooSlow):
                self._channel.send(error, ERROR_SECONDS)
                self._channel.hang_up()

    def _release(self) -> None:
        """Closes the environments and frees their room."""
        envs, self._envs = self._envs, None
        if envs is not None:
            envs.close()
        count, self._count = self._count, 0
        if count:
            self._quota.give_back(count)


def _server() -> str:
    try:
        return f"steppe {version('steppe')}"
    except PackageNotFoundError:
        return "steppe"
