"""What an experiment's Pods run: `python -m steppe.platforms.kubernetes.pod.roles ROLE`, as `main` knows them.

Light, since it lives beside the work: the training itself, and Ray, are processes of their own.
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
    CREW_TOKENS,
    DOOR_TOKEN,
    ELSEWHERE,
    FAILED_FOR_GOOD,
    LEARNER_TOKEN,
    LONGEST_LAST_WORDS,
    NOTE_FILE,
    PREFIX,
    RAY_TOKEN,
    REPLACED,
    RESULTS,
    SPEC,
    SPEC_KEY,
    TERMINATION_LOG,
    TOKENS,
)
from steppe.platforms.kubernetes.client.sights import lack
from steppe.platforms.kubernetes.pod.status_server import Door, read_status
from steppe.platforms.kubernetes.pod.stored_run import StoredRun
from steppe.platforms.kubernetes.storage.object_store import ObjectStore, stored_at
from steppe.platforms.kubernetes.storage.stored_status import StoredDoor
from steppe.runners.pods import CREW_FILE_VARIABLE, DOOR_PORT, JOINED_FILE_VARIABLE, RAY_VARIABLE

LINGER_SECONDS, LINGER_FOR_MISSING_SECONDS = 15.0, 900.0
"""How long a driver that is done tells so, for all that work for it to hear it; and for those that are not there now.

A Pod that fails again and again is begun anew every five minutes, and one that waits for a node may come as others go.
Whoever follows a run ends all its Pods before.
"""
OVER = (0, FAILED_FOR_GOOD)
"""The exit codes of a training that another Pod is not to go on with."""
ENDED = ("paused", "completed", "failed", "stopped")
"""The states of a training that has come to an end."""
DIED = 1
"""The exit code of a driver whose training has not even begun: nobody but Kubernetes counts how often."""
HANDED_OVER = 128 + signal.SIGTERM
"""How a training ends whose Pod is to go: it is saved, and goes on in another Pod."""
KEPT = (
    *("state", "reason", "heartbeat", "finished", "seconds"),
    *("timestep", "episode", "update", "mean_return", "best_return"),
)
"""What is left of a status where not all of it fits."""
DRIVER_FILE = Path("/tmp/steppe-driver.pid")
"""Where a driver in a Ray of KubeRay's notes its process, as long as it has something to save."""
RESTARTS, RESTART_SECONDS = 20, 5.0
"""How often a driver begins a training anew in a Pod that would not be replaced, and after how long."""
OUT_OF_MEMORY = "its Pod ran out of memory; give it more by kubernetes.driver.memory"


def main(arguments: list[str] | None = None) -> int:
    """The entry of every container."""
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


def told(name: str, default: str = "") -> str:
    """What the manifest tells this Pod."""
    return os.environ.get(f"{PREFIX}{name}", default)


def token(key: str) -> str:
    """One of the tokens that the Pods share."""
    return (Path(TOKENS) / key).read_text(encoding="utf-8").strip()


def read() -> int:
    """Shows the results until it is ended."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    facts = {"role": "reader"}
    door = (
        StoredDoor(_store_url(), _run_folder(), token(DOOR_TOKEN), facts)
        if told("STORE")
        else Door(_run_folder(), token(DOOR_TOKEN), lambda: facts, takes_requests=False)
    )
    door.open(DOOR_PORT)
    with contextlib.closing(door):
        over.wait()
    return 0


def erase() -> int:
    """Removes the results from their store; its last words say what came of it."""
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
    """Before KubeRay's Ray is ended in this container: has the driver in it save what it has, and waits for that."""
    with contextlib.suppress(OSError, ValueError):
        driver = int(DRIVER_FILE.read_text())
        os.kill(driver, signal.SIGTERM)
        while DRIVER_FILE.exists():
            time.sleep(0.1)
            os.kill(driver, 0)
    return 0


class Driver:
    """Trains in a process of its own, and answers at the door meanwhile."""

    def __init__(self) -> None:
        self.folder = _run_folder()
        self._is_in_ray = RAY_VARIABLE in os.environ
        self._session = secrets.token_hex(8)
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[str, Any] = {}
        self._is_ending = False
        self._stored: StoredRun | None = None
        if told("STORE"):
            self._stored = StoredRun(_store_url(), self.folder, self._session, self._hand_over)
        self._crew_file = Path("/tmp") / f"steppe-crew-{os.getpid()}.json"
        self._joined_file = Path("/tmp") / f"steppe-joined-{os.getpid()}.json"

    def run(self) -> int:
        """Until the training has ended; the exit code says whether Kubernetes is to begin it anew."""
        signal.signal(signal.SIGTERM, self._hand_over)
        door = Door(
            *(self.folder, token(DOOR_TOKEN), self._facts),
            crew_token=_crew_token(),
            crew_file=self._crew_file,
            takes_requests=True,
        )
        door.open(DOOR_PORT)
        with contextlib.closing(door):
            return self._run()

    def _run(self) -> int:
        try:
            if self._stored is not None and not self._stored.begin():
                return REPLACED
            was_over = self._is_start_over()
            exit_code = self._train_on() if self._is_in_ray or told("HAS_SIDECARS") else self._train()
            # Only what is stored is over: this Pod's own disk goes with it.
            if self._stored is not None and not self._stored.finish():
                return REPLACED
        except SteppeError:
            was_over, exit_code = False, FAILED_FOR_GOOD
        self._is_over = exit_code in OVER
        self._write_last_words(exit_code)
        if self._is_in_ray:
            self._leave_to_ray()
        if self._is_over and told("RUN_MODE") in ("distributed", "async"):
            joined = self._joined()
            # KubeRay ends all Pods by itself, and who was missing at the end had the time of an earlier Pod.
            is_told = self._is_in_ray or was_over or (joined and not lack(joined))
            self._linger(LINGER_SECONDS if is_told else LINGER_FOR_MISSING_SECONDS)
        if self._is_over:
            return exit_code
        return REPLACED if self._is_ending or exit_code == ELSEWHERE or self._has_begun() else DIED

    def _train_on(self) -> int:
        """Begins a training anew here that ends without a word, as long as that helps.

        KubeRay would make all Pods anew for it, and a Pod that a simulator still runs in is not replaced by its Job.
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

    def _leave_to_ray(self) -> None:
        """Ray is ended when all is saved, and this with it: KubeRay would take an end before that for a failure."""
        DRIVER_FILE.unlink(missing_ok=True)
        while self._is_ending and not self._is_over:
            time.sleep(1.0)

    def _train(self) -> int:
        """The exit code of one training."""
        self._joined_file.unlink(missing_ok=True)
        self._before = read_status(self.folder) or {}
        self._process = subprocess.Popen(self._command(), env=self._environment())
        if self._is_ending:
            self._process.send_signal(signal.SIGTERM)
        exit_code = self._process.wait()
        if exit_code == -signal.SIGKILL and _has_run_out_of_memory():
            # It would again: the experiment has failed, and says so.
            exit_code = subprocess.run([*self._command(), "--failed", OUT_OF_MEMORY], check=False).returncode
        return exit_code

    def _has_begun(self) -> bool:
        """Whether the status is the training's own, which notes how often it comes to nothing."""
        status = read_status(self.folder) or {}
        return self._process is not None and status.get("started") != self._before.get("started")

    def _is_start_over(self) -> bool:
        """Whether an earlier Pod has brought this start of the experiment to its end."""
        with contextlib.suppress(OSError, ValueError):
            note = json.loads((self.folder / NOTE_FILE).read_text(encoding="utf-8"))
            return isinstance(note, dict) and note.get("start") == told("START") and "exit_code" in note
        return False

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"role": "driver", "pod": told("NAME"), "session": self._session}
        facts |= {"is_over": self._is_over, "joined": self._joined()}
        return facts | {"status": self._shown()}

    def _shown(self) -> dict[str, Any] | None:
        """The run's own status; one that has ended is not over before its report is written."""
        status = read_status(self.folder) if self._stored is None else self._stored.shown()
        if self._is_over or status is None or status.get("state") not in ENDED or not self._has_begun():
            return status
        state = "pausing" if status["state"] == "paused" else "running"
        return status | {"state": state, "reason": "", "finished": None, "phase": "finishing"}

    def _joined(self) -> dict[str, Any]:
        """How many servers and workers the training has, and how many it wants; nothing before it knows."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(self._joined_file.read_text(encoding="utf-8")))
        return {}

    def _command(self) -> list[str]:
        spec = Path(SPEC) / SPEC_KEY
        words = [str(self.folder), "--spec", str(spec), "--generation", told("GENERATION"), "--start", told("START")]
        return [sys.executable, "-P", "-m", "steppe.experiments.process.pod_run", *words]

    def _environment(self) -> dict[str, str]:
        environment = os.environ | {
            CREW_FILE_VARIABLE: str(self._crew_file),
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
        """What the Pod leaves where nobody need mount anything to read it."""
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
        """Waits, unless this Pod is to go."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._is_ending:
            time.sleep(0.1)


def _run_folder() -> Path:
    return Path(RESULTS) / told("EXPERIMENT")


def _crew_token() -> str:
    """Empty where nobody works for this driver, or where KubeRay has them do it."""
    with contextlib.suppress(FileNotFoundError, KeyError):
        return token(CREW_TOKENS[told("RUN_MODE")])
    return ""


def _store_url() -> str:
    return stored_at(told("STORE"), told("HEAD"), token(DOOR_TOKEN))


def _has_run_out_of_memory() -> bool:
    """Whether the kernel has ended a process of this container for that."""
    for file in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in Path(file).read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.strip() not in ("", "0"):
                    return True
    return False


if __name__ == "__main__":
    sys.exit(main())
