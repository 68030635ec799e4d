"""What works for a driver, in Pods of its own: joins it, looks whether it is over, and joins again when it changes."""

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

from steppe.platforms.kubernetes.agreement import CREW_TOKENS, LEARNER_TOKEN, RAY_TOKEN, TOKEN_HEADER
from steppe.platforms.kubernetes.pod.async_worker import BEGUN, MADE
from steppe.platforms.kubernetes.pod.roles import token, told
from steppe.runners.pods import DOOR_PORT, LEARNER_PORT, RAY_PORT, is_listening, resource_of, store_bytes

LOOK_SECONDS = 5.0
"""How often the driver is asked whether it is over: twice while one that is done still tells so."""
POLL_SECONDS = 0.5
"""How often this Pod's own processes are looked at, and a driver that does not answer is asked again."""
ANSWER_SECONDS = 10.0
END_SECONDS = 10.0
GIVE_UP_SECONDS = 24 * 3600.0
"""After how long without a driver a Pod ends for good: what nobody ends is not to be paid for, for ever."""
EARLY_SECONDS, EARLY_DEATHS = 60.0, 5
"""How often in a row a Ray that joins may end within so many seconds, while the driver's own is there."""
LONGEST_WORDS = 500

Json = dict[str, Any]
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b: ")


class DriverAway(Exception):
    """It did not answer for so long that it will not any more."""


def serve(role: str) -> int:
    """Works until the driver says that it is over."""
    signal.signal(signal.SIGTERM, _end)
    driver = DriverDoor(told("HEAD"), token(CREW_TOKENS[told("RUN_MODE")]), float(told("PATIENCE", "900")))
    early_deaths = 0
    try:
        while True:
            answer = driver.wait()
            if answer["is_over"]:
                _say("the experiment is over")
                return 0
            if told("RUN_MODE") != "distributed":
                _act(driver)
                continue
            last_words = _be_part_of_ray(driver, role, answer["session"])
            early_deaths = early_deaths + 1 if last_words else 0
            if early_deaths == EARLY_DEATHS:
                # Such as another version: it would for ever.
                _say(f"error: its Ray cannot join the driver's: {last_words}")
                return 1
    except DriverAway as error:
        _say(str(error))
        return 0


class DriverDoor:
    """The driver, as other Pods of its experiment see it."""

    def __init__(self, host: str, token: str, patience: float, port: int = DOOR_PORT) -> None:
        self._host, self._token, self._patience, self._port = host, token, patience, port

    def ask(self) -> Json | None:
        """What the driver answers; None while it does not."""
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
        """The driver's answer, once it gives one: it may be in a queue, or being replaced, for hours."""
        begin = said = time.monotonic()
        while (answer := self.ask()) is None:
            now = time.monotonic()
            if now - begin > GIVE_UP_SECONDS:
                raise DriverAway(f"the driver at {self._host}:{self._port} has not answered for a day: it is over")
            if now - said > self._patience:
                said = now
                _say(f"the driver at {self._host}:{self._port} has not answered for {now - begin:.0f} s")
            time.sleep(POLL_SECONDS)
        return answer


def _be_part_of_ray(driver: DriverDoor, role: str, session: str) -> str:
    """A node of the driver's Ray, with room for this Pod's actors, until the driver ends or is another one.

    What Ray said where it ended by itself, and soon; else nothing.
    """
    if not is_listening(told("HEAD"), RAY_PORT, ANSWER_SECONDS):
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
    _say(f"joining the Ray at {told('HEAD')}:{RAY_PORT}")
    overheard = Overheard(process)
    try:
        while _all_run([process], LOOK_SECONDS):
            answer = driver.ask()
            if answer is not None and (answer["is_over"] or answer["session"] != session):
                return ""
    finally:
        _end_group(process)
    # It ends by itself when the driver's Ray is gone, and then at once again until there is another.
    is_early = time.monotonic() - begin < EARLY_SECONDS
    time.sleep(LOOK_SECONDS)
    return overheard.last_words() if is_early else ""


class Overheard:
    """Passes on what a process prints, and remembers the last of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=30)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def last_words(self) -> str:
        """The last error that it printed, else its last line, else how it ended."""
        # Whatever it has left running may still hold the other end.
        self._thread.join(END_SECONDS)
        lines = [line.strip() for line in self._lines if line.strip()]
        errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
        said = " ".join(lines[errors[-1] :] if errors else lines[-1:])
        return said[:LONGEST_WORDS] or f"exit code {self._process.returncode}"

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for line in pipe:
                text = line.decode(errors="replace").rstrip()
                self._lines.append(text)
                _say(text)


def _ray_command(role: str) -> list[str]:
    members = int(told("MEMBERS", "1"))
    return [
        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block"),
        f"--address={told('HEAD')}:{RAY_PORT}",
        f"--node-ip-address={told('IP')}",
        # What workers and servers take is promised by their Pods: Ray only counts places.
        "--num-cpus=1000",
        f"--num-gpus={told('GPUS', '0')}",
        f"--resources={json.dumps({resource_of(role): members})}",
        f"--object-store-memory={store_bytes(float(told('MEMORY', '1e9')))}",
        "--disable-usage-stats",
        "--log-color=false",
    ]


def _ray_environment() -> dict[str, str]:
    return os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token(RAY_TOKEN), "RAY_worker_niceness": "0"}


def _act(driver: DriverDoor) -> None:
    """As many workers of the driver's learner as this Pod has, until they end."""
    crew = driver.ask()
    if crew is None or "plan" not in crew or not is_listening(told("HEAD"), LEARNER_PORT, ANSWER_SECONDS):
        time.sleep(POLL_SECONDS)
        return
    plan, patience = crew["plan"], crew["worker_timeout"]
    workers = [Worker(plan) for _ in range(int(told("MEMBERS", "1")))]
    processes = [worker.process for worker in workers]
    try:
        while _all_run(processes, LOOK_SECONDS):
            if any(worker.is_stuck(patience) for worker in workers):
                _say_stuck(plan, patience)
                return
            crew = driver.ask()
            if crew is None:
                continue
            if crew["is_over"]:
                return
            if any(worker.name in crew.get("hung", ()) for worker in workers):
                _say("a worker hangs and begins anew")
                return
    finally:
        for worker in workers:
            worker.end()
    if any(process.returncode for process in processes):
        sys.exit(1)


class Worker:
    """One worker in a process of its own, by the name that the learner knows it by."""

    def __init__(self, plan: Json) -> None:
        self.name = secrets.token_hex(8)
        self._heard, told_by = os.pipe()
        os.set_blocking(self._heard, False)
        self._begun: float | None = None
        self._has_made = False
        command = [sys.executable, "-P", "-m", "steppe.platforms.kubernetes.pod.async_worker", str(told_by)]
        environment = os.environ | {"STEPPE_LEARNER_TOKEN": token(LEARNER_TOKEN)}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, start_new_session=True, pass_fds=[told_by]
        )
        os.close(told_by)
        place = {"address": _learner(), "reconnect": float(told("PATIENCE", "900"))}
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(json.dumps({**plan, **place, "name": self.name}).encode())

    def is_stuck(self, patience: float) -> bool:
        """Whether it has been making its environment for longer than that."""
        said = b""
        with contextlib.suppress(BlockingIOError):
            said = os.read(self._heard, 16)
        now = time.monotonic()
        self._has_made |= MADE in said
        if BEGUN in said:
            self._begun = now
        return not self._has_made and self._begun is not None and now - self._begun > patience

    def end(self) -> None:
        """Ends it, and all that it started."""
        _end_group(self.process)
        os.close(self._heard)


def _say_stuck(plan: Json, patience: float) -> None:
    """Here, and to the learner: such workers count as dead, and the run ends where all of them are stuck."""
    from steppe.runners.engines.asynchronous.wire.access import trust_only
    from steppe.runners.engines.asynchronous.wire.protocol import not_made_within
    from steppe.runners.engines.asynchronous.worker.connection import LearnerAddress, decline

    sentence = not_made_within(patience)
    _say(f"a worker is stuck and begins anew: {sentence}")
    tls = None if plan["certificate"] is None else trust_only(plan["certificate"])
    decline(LearnerAddress(_learner(), token(LEARNER_TOKEN), tls), "fault", sentence)


def _learner() -> str:
    return f"{told('HEAD')}:{LEARNER_PORT}"


def _all_run(processes: list[subprocess.Popen[bytes]], seconds: float) -> bool:
    """Waits so long, or until one of them ends."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if any(process.poll() is not None for process in processes):
            return False
        time.sleep(POLL_SECONDS)
    return True


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _say(sentence: str) -> None:
    print(sentence, flush=True)
