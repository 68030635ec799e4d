"""The Pods that work for a driver: they join it, ask whether it is over, and join again if it was replaced."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from http.client import HTTPConnection, HTTPException
from typing import Any

from steppe.platforms.kubernetes.agreement import LEARNER_TOKEN, POOL_TOKENS, RAY_TOKEN, TOKEN_HEADER
from steppe.platforms.kubernetes.pod.async_worker import BEGUN, MADE
from steppe.platforms.kubernetes.pod.roles import pod_variable, token
from steppe.runners.pods import DOOR_PORT, LEARNER_PORT, RAY_PORT, is_listening, resource_of, store_bytes

LOOK_SECONDS = 5.0
"""How often the driver is asked whether it is over; a finished driver answers for at least twice as long."""
POLL_SECONDS = 0.5
"""How often this Pod's own processes are polled, and a silent driver is asked again."""
ANSWER_SECONDS = 10.0
END_SECONDS = 10.0
GIVE_UP_SECONDS = 24 * 3600.0
"""After how long without a driver a Pod ends for good, so that a forgotten Pod does not cost money for ever."""
EARLY_SECONDS, EARLY_DEATHS = 60.0, 5
"""How often in a row a joining Ray may end within so many seconds while the driver's Ray runs."""
LONGEST_ERROR = 500

Json = dict[str, Any]
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b: ")


class DriverAway(Exception):
    """The driver has not answered for so long that it never will."""


def serve(role: str) -> int:
    """Works until the driver says that it is over."""
    signal.signal(signal.SIGTERM, _end)
    run_mode, patience = pod_variable("RUN_MODE"), float(pod_variable("PATIENCE", "900"))
    driver = DriverClient(pod_variable("HEAD"), token(POOL_TOKENS[run_mode]), patience)
    early_deaths = 0
    try:
        while True:
            answer = driver.wait()
            if answer["is_over"]:
                _say("the experiment is over")
                return 0
            if run_mode != "distributed":
                _run_workers(driver)
                continue
            error = _join_ray(driver, role, answer["session"])
            early_deaths = early_deaths + 1 if error else 0
            if early_deaths == EARLY_DEATHS:
                # A reason that stays, such as another version of Ray.
                _say(f"error: its Ray cannot join the driver's: {error}")
                return 1
    except DriverAway as away:
        _say(str(away))
        return 0


class DriverClient:
    """The client of the driver's status server for the other Pods of its experiment."""

    def __init__(self, host: str, token: str, patience: float, port: int = DOOR_PORT) -> None:
        self._host, self._token, self._patience, self._port = host, token, patience, port

    def ask(self) -> Json | None:
        """The driver's answer; None if it does not answer."""
        connection = HTTPConnection(self._host, self._port, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", "/crew", headers={TOKEN_HEADER: self._token})
            answer = connection.getresponse()
            body = answer.read()
            return json.loads(body) if answer.status == 200 else None
        except (OSError, HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def wait(self) -> Json:
        """Waits for the driver's answer: the driver may be in a queue, or being replaced, for hours."""
        begin = reported = time.monotonic()
        while (answer := self.ask()) is None:
            now = time.monotonic()
            if now - begin > GIVE_UP_SECONDS:
                raise DriverAway(f"the driver at {self._host}:{self._port} has not answered for a day: it is over")
            if now - reported > self._patience:
                reported = now
                _say(f"the driver at {self._host}:{self._port} has not answered for {now - begin:.0f} s")
            time.sleep(POLL_SECONDS)
        return answer


def _join_ray(driver: DriverClient, role: str, session: str) -> str:
    """Runs a node of the driver's Ray, with room for this Pod's actors, until the driver ends or is replaced.

    Returns the error of Ray if that ended by itself, and soon; else an empty text.
    """
    if not is_listening(pod_variable("HEAD"), RAY_PORT, ANSWER_SECONDS):
        time.sleep(POLL_SECONDS)
        return ""
    begin = time.monotonic()
    process = subprocess.Popen(
        _ray_command(role),
        env=_ray_environment(),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    _say(f"joining the Ray at {pod_variable('HEAD')}:{RAY_PORT}")
    output = OutputTail(process)
    try:
        while _all_run([process], LOOK_SECONDS):
            answer = driver.ask()
            if answer is not None and (answer["is_over"] or answer["session"] != session):
                return ""
    finally:
        _end_group(process)
    # Ray ends by itself when the driver's Ray is gone, and would end at once again until there is another.
    is_early = time.monotonic() - begin < EARLY_SECONDS
    time.sleep(LOOK_SECONDS)
    return output.error() if is_early else ""


class OutputTail:
    """Prints the output of a process, and remembers its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=30)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def error(self) -> str:
        """The last error that it printed, else its last line, else its exit code."""
        # A child that it has left running may still hold the other end.
        self._thread.join(END_SECONDS)
        lines = [line.strip() for line in self._lines if line.strip()]
        errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
        text = " ".join(lines[errors[-1] :] if errors else lines[-1:])
        return text[:LONGEST_ERROR] or f"exit code {self._process.returncode}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for line in pipe:
                text = line.decode(errors="replace").rstrip()
                self._lines.append(text)
                _say(text)


def _ray_command(role: str) -> list[str]:
    members = int(pod_variable("MEMBERS", "1"))
    return [
        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block"),
        f"--address={pod_variable('HEAD')}:{RAY_PORT}",
        f"--node-ip-address={pod_variable('IP')}",
        # The Pods reserve CPUs for workers and servers; Ray only counts the room for actors.
        "--num-cpus=1000",
        f"--num-gpus={pod_variable('GPUS', '0')}",
        f"--resources={json.dumps({resource_of(role): members})}",
        f"--object-store-memory={store_bytes(float(pod_variable('MEMORY', '1e9')))}",
        "--disable-usage-stats",
        "--log-color=false",
    ]


def _ray_environment() -> dict[str, str]:
    return os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token(RAY_TOKEN), "RAY_worker_niceness": "0"}


def _run_workers(driver: DriverClient) -> None:
    """Runs this Pod's workers of the driver's learner until one of them ends or all must restart."""
    answer = driver.ask()
    if answer is None or "plan" not in answer or not is_listening(pod_variable("HEAD"), LEARNER_PORT, ANSWER_SECONDS):
        time.sleep(POLL_SECONDS)
        return
    config, timeout = answer["plan"], answer["worker_timeout"]
    workers = [WorkerProcess(config) for _ in range(int(pod_variable("MEMBERS", "1")))]
    processes = [worker.process for worker in workers]
    try:
        while _all_run(processes, LOOK_SECONDS):
            if any(worker.is_stuck(timeout) for worker in workers):
                _report_stuck(config, timeout)
                return
            answer = driver.ask()
            if answer is None:
                continue
            if answer["is_over"]:
                return
            if any(worker.name in answer.get("hung", ()) for worker in workers):
                _say("a worker hangs and begins anew")
                return
    finally:
        for worker in workers:
            worker.end()
    if any(process.returncode for process in processes):
        sys.exit(1)


class WorkerProcess:
    """One worker in a process of its own; the learner knows it by `name`."""

    def __init__(self, config: Json) -> None:
        self.name = secrets.token_hex(8)
        self._events, writing_end = os.pipe()
        os.set_blocking(self._events, False)
        self._begun: float | None = None
        self._has_made = False
        command = [sys.executable, "-P", "-m", "steppe.platforms.kubernetes.pod.async_worker", str(writing_end)]
        environment = os.environ | {"STEPPE_LEARNER_TOKEN": token(LEARNER_TOKEN)}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, start_new_session=True, pass_fds=[writing_end]
        )
        os.close(writing_end)
        own = {"address": _learner(), "reconnect": float(pod_variable("PATIENCE", "900"))}
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(json.dumps({**config, **own, "name": self.name}).encode())

    def is_stuck(self, timeout: float) -> bool:
        """Whether it has been making its environment for longer than `timeout` seconds."""
        events = b""
        with contextlib.suppress(BlockingIOError):
            events = os.read(self._events, 16)
        now = time.monotonic()
        self._has_made |= MADE in events
        if BEGUN in events:
            self._begun = now
        return not self._has_made and self._begun is not None and now - self._begun > timeout

    def end(self) -> None:
        """Ends it and its children."""
        _end_group(self.process)
        os.close(self._events)


def _report_stuck(config: Json, timeout: float) -> None:
    """Reports a stuck worker in the log and to the learner, which ends the run if all its workers are stuck."""
    from steppe.runners.engines.asynchronous.wire.access import trust_only
    from steppe.runners.engines.asynchronous.wire.protocol import not_made_within
    from steppe.runners.engines.asynchronous.worker.connection import LearnerAddress, decline

    sentence = not_made_within(timeout)
    _say(f"a worker is stuck and begins anew: {sentence}")
    tls = None if config["certificate"] is None else trust_only(config["certificate"])
    decline(LearnerAddress(_learner(), token(LEARNER_TOKEN), tls), "fault", sentence)


def _learner() -> str:
    return f"{pod_variable('HEAD')}:{LEARNER_PORT}"


def _all_run(processes: list[subprocess.Popen[bytes]], seconds: float) -> bool:
    """Waits for `seconds`, or until one of the processes ends; whether all still run."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if any(process.poll() is not None for process in processes):
            return False
        time.sleep(POLL_SECONDS)
    return True


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _say(sentence: str) -> None:
    print(sentence, flush=True)
