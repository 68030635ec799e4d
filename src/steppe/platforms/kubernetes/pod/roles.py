"""The programs of an experiment's Pods: `python -m steppe.platforms.kubernetes.pod.roles ROLE`, with a role of `main`.

This process needs little memory, since it runs beside the training and Ray, which are processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from steppe.errors import SteppeError
from steppe.platforms.kubernetes.agreement import (
    ELSEWHERE,
    FAILED_FOR_GOOD,
    LEARNER_TOKEN,
    LONGEST_LAST_WORDS,
    NOTE_FILE,
    POOL_TOKENS,
    PREFIX,
    RAY_TOKEN,
    REPLACED,
    RESULTS,
    SPEC,
    SPEC_KEY,
    STATUS_TOKEN,
    TERMINATION_LOG,
    TOKENS,
)
from steppe.platforms.kubernetes.diagnosis.driver_phase import missing_pods
from steppe.platforms.kubernetes.pod.status_server import StatusServer, read_status
from steppe.platforms.kubernetes.pod.stored_run import StoredRun
from steppe.platforms.kubernetes.storage.object_store import ObjectStore, stored_at
from steppe.platforms.kubernetes.storage.stored_status import StoredStatusServer
from steppe.runners.pods import CREW_FILE_VARIABLE, DOOR_PORT, JOINED_FILE_VARIABLE, RAY_VARIABLE

LINGER_SECONDS, LINGER_FOR_MISSING_SECONDS = 15.0, 900.0
"""For how long a finished driver answers that it is over, if all Pods of its pool are connected, and if some are not.

Kubernetes restarts a failing Pod every five minutes, and a Pod without a node may get one when others end. A client
that follows the run ends all its Pods before that.
"""
OVER = (0, FAILED_FOR_GOOD)
"""The exit codes of a training that no other Pod must resume."""
ENDED = ("paused", "completed", "failed", "stopped")
"""The states of a training that has ended."""
DIED = 1
"""The exit code of a driver whose training has not even begun; Kubernetes counts how often that happens."""
HANDED_OVER = 128 + signal.SIGTERM
"""The exit code of a training that was saved because its Pod must end; another Pod resumes it."""
KEPT = (
    *("state", "reason", "heartbeat", "finished", "seconds"),
    *("timestep", "episode", "update", "mean_return", "best_return"),
)
"""The fields of a status that are kept if not all of it fits."""
DRIVER_FILE = Path("/tmp/steppe-driver.pid")
"""The file with the process of a driver in a Ray of KubeRay, as long as the driver has something to save."""
RESTARTS, RESTART_SECONDS = 20, 5.0
"""How often, and after which pause, a driver restarts a training in a Pod that Kubernetes would not replace."""
OUT_OF_MEMORY = "its Pod ran out of memory; give it more by kubernetes.driver.memory"


def main(arguments: list[str] | None = None) -> int:
    """The entry point of every container."""
    (role,) = sys.argv[1:] if arguments is None else arguments
    match role:
        case "driver":
            return Driver().run()
        case "reader":
            return read()
        case "eraser":
            return erase()
        case "hand-over":
            return hand_over()
        case _:
            from steppe.platforms.kubernetes.pod.pool_client import serve

            return serve(role)


def pod_variable(name: str, default: str = "") -> str:
    """A variable that the manifest sets in this Pod."""
    return os.environ.get(f"{PREFIX}{name}", default)


def token(key: str) -> str:
    """One of the tokens that the Pods share."""
    return (Path(TOKENS) / key).read_text(encoding="utf-8").strip()


def read() -> int:
    """Runs the status server of a reader until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    facts = {"role": "reader"}
    server = (
        StoredStatusServer(_store_url(), _run_folder(), token(STATUS_TOKEN), facts)
        if pod_variable("STORE")
        else StatusServer(_run_folder(), token(STATUS_TOKEN), lambda: facts, takes_requests=False)
    )
    server.open(DOOR_PORT)
    with contextlib.closing(server):
        over.wait()
    return 0


def erase() -> int:
    """Removes the results from object storage; the termination message tells the outcome."""
    words: dict[str, Any]
    try:
        words = {"erased": ObjectStore(_store_url()).erase()}
    except SteppeError as error:
        words = {"error": str(error)}
    print(json.dumps(words), flush=True)
    with contextlib.suppress(OSError):
        Path(TERMINATION_LOG).write_text(json.dumps(words))
    return int("error" in words)


def hand_over() -> int:
    """Before KubeRay ends the Ray in this container: has the driver save its training, and waits for that."""
    with contextlib.suppress(OSError, ValueError):
        driver = int(DRIVER_FILE.read_text())
        os.kill(driver, signal.SIGTERM)
        while DRIVER_FILE.exists():
            time.sleep(0.1)
            os.kill(driver, 0)
    return 0


class Driver:
    """Runs the training in a process of its own, and the status server meanwhile."""

    def __init__(self) -> None:
        self.folder = _run_folder()
        self._is_in_ray = RAY_VARIABLE in os.environ
        self._session = secrets.token_hex(8)
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[str, Any] = {}
        self._is_ending = False
        self._stored: StoredRun | None = None
        if pod_variable("STORE"):
            self._stored = StoredRun(_store_url(), self.folder, self._session, self._hand_over)
        self._pool_file = Path("/tmp") / f"steppe-crew-{os.getpid()}.json"
        self._joined_file = Path("/tmp") / f"steppe-joined-{os.getpid()}.json"

    def run(self) -> int:
        """Runs until the training has ended; the exit code tells Kubernetes whether to start another Pod."""
        signal.signal(signal.SIGTERM, self._hand_over)
        server = StatusServer(
            *(self.folder, token(STATUS_TOKEN), self._facts),
            pool_token=_pool_token(),
            pool_file=self._pool_file,
            takes_requests=True,
        )
        server.open(DOOR_PORT)
        with contextlib.closing(server):
            return self._run()

    def _run(self) -> int:
        try:
            if self._stored is not None and not self._stored.begin():
                return REPLACED
            was_over = self._is_start_over()
            exit_code = (
                self._train_with_restarts() if self._is_in_ray or pod_variable("HAS_SIDECARS") else self._train()
            )
            # The run is over only once its results are stored: this Pod's own disk is deleted with it.
            if self._stored is not None and not self._stored.finish():
                return REPLACED
        except SteppeError:
            was_over, exit_code = False, FAILED_FOR_GOOD
        self._is_over = exit_code in OVER
        self._write_last_words(exit_code)
        if self._is_in_ray:
            self._wait_for_ray_to_end()
        if self._is_over and pod_variable("RUN_MODE") in ("distributed", "async"):
            joined = self._joined()
            # KubeRay ends all Pods by itself; after an earlier Pod of this start, missing Pods have had their time.
            has_told_all = self._is_in_ray or was_over or (joined and not missing_pods(joined))
            self._linger(LINGER_SECONDS if has_told_all else LINGER_FOR_MISSING_SECONDS)
        if self._is_over:
            return exit_code
        return REPLACED if self._is_ending or exit_code == ELSEWHERE or self._has_begun() else DIED

    def _train_with_restarts(self) -> int:
        """Restarts a training in this Pod that dies without a report.

        KubeRay would make all Pods anew for it, and a Job does not replace a Pod in which a simulator still runs.
        """
        if self._is_in_ray:
            DRIVER_FILE.write_text(str(os.getpid()))
        for _ in range(RESTARTS):
            exit_code = self._train()
            if exit_code in OVER:
                break
            self._linger(RESTART_SECONDS)
            if self._is_ending:
                break
        return exit_code

    def _wait_for_ray_to_end(self) -> None:
        """Waits to be ended with Ray once all is saved: KubeRay would count an earlier end as a failure."""
        DRIVER_FILE.unlink(missing_ok=True)
        while self._is_ending and not self._is_over:
            time.sleep(1.0)

    def _train(self) -> int:
        """Runs one training; returns its exit code."""
        self._joined_file.unlink(missing_ok=True)
        self._before = read_status(self.folder) or {}
        self._process = subprocess.Popen(self._command(), env=self._environment())
        if self._is_ending:
            self._process.send_signal(signal.SIGTERM)
        exit_code = self._process.wait()
        if exit_code == -signal.SIGKILL and _has_run_out_of_memory():
            # It would run out of memory again, so the experiment has failed.
            exit_code = subprocess.run([*self._command(), "--failed", OUT_OF_MEMORY], check=False).returncode
        return exit_code

    def _has_begun(self) -> bool:
        """Whether this training has written a status, and so counts its failures itself."""
        status = read_status(self.folder) or {}
        return self._process is not None and status.get("started") != self._before.get("started")

    def _is_start_over(self) -> bool:
        """Whether this start of the experiment has already ended in an earlier Pod."""
        with contextlib.suppress(OSError, ValueError):
            note = json.loads((self.folder / NOTE_FILE).read_text(encoding="utf-8"))
            return isinstance(note, dict) and note.get("start") == pod_variable("START") and "exit_code" in note
        return False

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"role": "driver", "pod": pod_variable("NAME"), "session": self._session}
        facts |= {"is_over": self._is_over, "joined": self._joined()}
        return facts | {"status": self._shown()}

    def _shown(self) -> dict[str, Any] | None:
        """The run's own status; a run that has ended is shown as finishing until its report is written."""
        status = read_status(self.folder) if self._stored is None else self._stored.shown()
        if self._is_over or status is None or status.get("state") not in ENDED or not self._has_begun():
            return status
        state = "pausing" if status["state"] == "paused" else "running"
        return status | {"state": state, "reason": "", "finished": None, "phase": "finishing"}

    def _joined(self) -> dict[str, Any]:
        """How many servers and workers the training has and wants; empty before it knows."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(self._joined_file.read_text(encoding="utf-8")))
        return {}

    def _command(self) -> list[str]:
        spec = Path(SPEC) / SPEC_KEY
        words = [
            str(self.folder),
            "--spec",
            str(spec),
            "--generation",
            pod_variable("GENERATION"),
            "--start",
            pod_variable("START"),
        ]
        return [sys.executable, "-P", "-m", "steppe.experiments.process.pod_run", *words]

    def _environment(self) -> dict[str, str]:
        environment = os.environ | {
            CREW_FILE_VARIABLE: str(self._pool_file),
            JOINED_FILE_VARIABLE: str(self._joined_file),
        }
        for key, name in ((RAY_TOKEN, "RAY_AUTH_TOKEN"), (LEARNER_TOKEN, "STEPPE_LEARNER_TOKEN")):
            with contextlib.suppress(FileNotFoundError):
                environment[name] = token(key)
        return environment

    def _hand_over(self, *_: object) -> None:
        self._is_ending = True
        if self._stored is not None:
            self._stored.hand_over()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def _write_last_words(self, exit_code: int) -> None:
        """Writes the status into the termination message, which can be read without mounting a disk."""
        status = read_status(self.folder) or {}
        if exit_code == ELSEWHERE:
            status["reason"] = "another Pod still had the experiment, and only one may write the results"
        elif not self._is_over and exit_code != HANDED_OVER:
            status["reason"] = f"the training ended without a word (exit code {exit_code})"
        words = json.dumps({"status": status, "is_over": self._is_over})
        if len(words) > LONGEST_LAST_WORDS:
            status = {name: value for name, value in status.items() if name in KEPT}
            status["reason"] = str(status.get("reason", ""))[:1000]
            words = json.dumps({"status": status, "is_over": self._is_over})
        with contextlib.suppress(OSError):
            Path(TERMINATION_LOG).write_text(words)

    def _linger(self, seconds: float) -> None:
        """Waits for `seconds`, or until this Pod must end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._is_ending:
            time.sleep(0.1)


def _run_folder() -> Path:
    return Path(RESULTS) / pod_variable("EXPERIMENT")


def _pool_token() -> str:
    """The token of the pool; empty if there is no pool, or if KubeRay manages it."""
    with contextlib.suppress(FileNotFoundError, KeyError):
        return token(POOL_TOKENS[pod_variable("RUN_MODE")])
    return ""


def _store_url() -> str:
    return stored_at(pod_variable("STORE"), pod_variable("HEAD"), token(STATUS_TOKEN))


def _has_run_out_of_memory() -> bool:
    """Whether the kernel has killed a process of this container for want of memory."""
    for file in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in Path(file).read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.strip() not in ("", "0"):
                    return True
    return False


if __name__ == "__main__":
    sys.exit(main())
