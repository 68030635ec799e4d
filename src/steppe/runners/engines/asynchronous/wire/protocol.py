"""The protocol between a learner and its workers, in frames of `steppe.net.protocol`.

The worker sends a request and the learner answers it; only "over" may come at any time, as the learner's last message.

| worker                                                  | learner                                              |
|---------------------------------------------------------|------------------------------------------------------|
| hello: protocol, version, token                         | proceed                                              |
| join: worker, environments, the two spaces              | welcome: session, number, seed, task; or wait        |
| unable: kind, message; instead of join                  | noted                                                |
| fetch: has, session                                     | news: version, timestep, exploration, perhaps policy |
| batch: has, session, and as `batches.to_message` has it | taken or dropped, with news                          |
| alive                                                   | noted                                                |
| said: lines                                             | noted                                                |
| fault: message                                          | noted                                                |
| leave                                                   | bye                                                  |
|                                                         | over: message                                        |
|                                                         | error: kind, message, version                        |
"""

from __future__ import annotations

NAME = "steppe-async"
VERSION = 1
GREETING_SECONDS = 10.0
"""How long a new connection may take to show its token."""
ALIVE_SECONDS = 5.0
"""How often a worker that is collecting a batch sends a sign of life."""
LISTEN_SECONDS = 0.25
"""How often each side checks whether the run is over while the other one is silent."""
LONGEST_SENTENCE = 4000
SAY_SECONDS = 1.0
"""How often a worker forwards its output."""
MOST_LINES = 10
"""The most lines of one message; further ones are only counted."""
LONGEST_LINE = 300
"""The most characters of a line; all lines fit into the smallest message."""
LogLines = list[tuple[int, str]]
"""(level, text) of logged or printed lines."""
TOKEN_VARIABLE = "STEPPE_LEARNER_TOKEN"


def not_made_within(patience: float) -> str:
    """The error of a worker that hangs while it makes its environment."""
    return (
        f"it has not made its environment within {patience:g} s; where that is no fault of the environment, raise "
        "asynchronous.worker_timeout"
    )
