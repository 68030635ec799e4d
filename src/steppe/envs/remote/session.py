"""One learner's connection that has greeted, seen from the server: makes environments, resets and steps them."""

from __future__ import annotations

import contextlib
import logging
import threading
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

import numpy as np

from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.errors import SteppeError, UserError
from steppe.net.admission import AdmittedConnection
from steppe.net.hello import RequestRefused
from steppe.net.messagepack import Malformed
from steppe.net.protocol import (
    LARGEST,
    LONGEST_ERROR,
    VERSION,
    Channel,
    ChannelClosed,
    Message,
    TooSlow,
    limits_for,
    read_array,
    read_count,
    to_wire,
)
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import action_dtype, to_json

MAKE_SECONDS = 60.0
"""How long a learner may take from its greeting until it asks for environments; later it may be silent for long."""
TELL_SECONDS = 10.0
"""How long a learner may take to receive an error."""
LARGEST_NUMBER = 2**31 - 1
"""Of timesteps and repetitions that a learner may ask for."""

log = logging.getLogger(__name__)
_making = threading.Lock()
"""Environments are made one after the other: importing and registering are not made for several threads."""


class Counts(Protocol):
    """Who knows how many environments there may be."""

    def take(self, count: int) -> str | None:
        """Takes places; why not, if there are not so many."""

    def give_back(self, count: int) -> None:
        """Frees places."""


class EnvironmentSession:
    """Serves one connection until either side ends it."""

    def __init__(self, member: AdmittedConnection, spec: EnvironmentSpec, places: Counts) -> None:
        self._member, self._peer, self._spec, self._places = member, member.peer[0], spec, places
        self._channel: Channel | None = None
        self._envs: GymnasiumEnvs | None = None
        self._count = 0
        self._is_stopped = False

    def run(self) -> None:
        """From the welcome to the end; whatever goes wrong is told to the learner, where that is possible."""
        try:
            self._channel = channel = Channel(self._member.sock)
            if self._is_stopped:
                return
            channel.send(
                {"op": "welcome", "version": VERSION, "server": _server(), "environment": self._spec.id}, TELL_SECONDS
            )
            log.info("%s: connected", self._peer)
            while (request := channel.receive(MAKE_SECONDS if self._envs is None else None))["op"] != "close":
                channel.send(self._answer(request, channel))
            self._release()
            channel.send({"op": "closed"})
        except (ChannelClosed, TooSlow) as error:
            log.info("%s: disconnected (%s)", self._peer, str(error) or "too slow")
        except RequestRefused as error:
            self._tell(error.kind, str(error))
        except Malformed as error:
            self._tell("protocol", f"the client {error}")
        except SteppeError as error:
            self._tell("user" if isinstance(error, UserError) else "fault", str(error))
        except Exception as error:
            log.exception("%s: the server failed", self._peer)
            self._tell("fault", f"the server failed: {type(error).__name__}: {error}")
        finally:
            self._release()
            (self._channel or self._member.sock).close()
            self._member.leave()

    def stop(self) -> None:
        """Ends the session after the step that is under way; called from another thread."""
        self._is_stopped = True
        if self._channel is not None:
            self._channel.stop_receiving()

    def _answer(self, request: Message, channel: Channel) -> Message:
        envs = self._envs
        match request["op"]:
            case "step" if envs is not None:
                return self._step(envs, request)
            case "reset" if envs is not None:
                seed = read_count(request, "seed", least=0)
                return {"op": "began", "observations": to_wire(envs.reset(seed))}
            case "make" if envs is None:
                return self._make(request, channel)
            case op:
                raise Malformed(f'sent "{op[:50]}" when {"nothing was made yet" if envs is None else "all was made"}')

    def _make(self, request: Message, channel: Channel) -> Message:
        count = read_count(request, "count")
        max_timesteps = read_count(request, "max_timesteps", most=LARGEST_NUMBER, optional=True)
        repeat = read_count(request, "repeat", most=LARGEST_NUMBER)
        why_not = self._places.take(count)
        if why_not is not None:
            raise RequestRefused("busy", why_not)
        self._count = count
        with _making:
            envs = self._envs = GymnasiumEnvs(self._spec, count, max_timesteps, repeat)
        longest_request, longest_answer = limits_for(envs.observation_space, envs.action_space, count)
        if max(longest_request, longest_answer) > LARGEST:
            raise UserError(f"{count} environments observe more than one message may hold; ask for fewer")
        channel.limit = longest_request
        self._actions = np.zeros((count, *envs.action_space.shape), action_dtype(envs.action_space))
        return {
            "op": "made",
            "observation_space": to_json(envs.observation_space),
            "action_space": to_json(envs.action_space),
            "limit": envs.max_episode_steps,
        }

    def _step(self, envs: GymnasiumEnvs, request: Message) -> Message:
        read_array(request, "actions", self._actions)
        step = envs.step(self._actions)
        answer = {
            "op": "stepped",
            "next_observations": to_wire(step.next_observations),
            "rewards": to_wire(step.rewards),
            "terminated": to_wire(step.terminated),
            "truncated": to_wire(step.truncated),
        }
        ended = step.terminated | step.truncated
        if ended.any():
            answer["observations"] = to_wire(step.observations[ended])
        if step.scores is not step.rewards:
            answer["scores"] = to_wire(step.scores)
        if (step.finished != ended).any():
            answer["finished"] = to_wire(step.finished)
        return answer

    def _tell(self, kind: str, message: str) -> None:
        """Says what is wrong; that is the last message of a connection."""
        log.warning("%s: %s", self._peer, message)
        error = {"op": "error", "kind": kind, "message": message[:LONGEST_ERROR], "version": VERSION}
        if self._channel is not None:
            with contextlib.suppress(ChannelClosed, TooSlow):
                self._channel.send(error, TELL_SECONDS)
                self._channel.hang_up()

    def _release(self) -> None:
        """Closes the environments and frees their places."""
        envs, self._envs = self._envs, None
        if envs is not None:
            envs.close()
        count, self._count = self._count, 0
        if count:
            self._places.give_back(count)


def _server() -> str:
    try:
        return f"steppe {version('steppe')}"
    except PackageNotFoundError:
        return "steppe"
