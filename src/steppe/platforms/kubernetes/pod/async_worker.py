"""One worker of run mode async in a Pod: reads its configuration from standard input, and acts until the end.

Through the pipe in its first argument it reports when it begins to make its environment and when that is made: if the
environment hangs meanwhile, this process may be unable to react itself. It needs neither Ray nor JAX.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

BEGUN, MADE = b"b", b"m"
"""The messages in the pipe: the environment is being made, it is made."""


def main(pipe: int) -> int:
    """Runs the worker; the exit code is 0 if the learner is done."""
    from steppe.runners.engines.asynchronous.worker.ray_actor import Placement, WorkerActor
    from steppe.runners.simulators import wait_for_simulator
    from steppe.specs.environment import EnvironmentSpec

    plan: dict[str, Any] = json.load(sys.stdin)
    wait_for_simulator(EnvironmentSpec.model_validate(plan["environment"]))
    paths = (os.getcwd(),)  # noqa: PTH109
    placement = Placement(**plan, token=os.environ["STEPPE_LEARNER_TOKEN"], paths=paths)
    os.write(pipe, BEGUN)
    ending = WorkerActor().work(placement, has_made=lambda: os.write(pipe, MADE))
    if ending.kind == "done":
        return 0
    print(f"error: {ending.sentence}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
