"""Bytes and CPU time that one worker costs its learner, parameter servers and driver: the base of docs/scaling.md.

Nothing here learns or plays. Batches, pushes and orders are real messages with made-up numbers that take the real
route, so the benchmark measures the costs that grow with the number of workers. CPU time is that of the serving side
alone, of its thread or its process, so it hardly depends on the number of cores.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from contestants import dense
from interleave import Run, Runs, conclude, is_quick
from process_tree import TICKS, megabytes_of
from steppe import __version__
from steppe.specs.spaces import Box, Discrete, Space

SILENT_WORKERS = 1000
"""Connections that are held open, to measure the cost of one that sends nothing."""
WARM_UP = 20
"""Repetitions that are not counted."""
SHAPES: dict[str, tuple[Space, Space, dict[str, Any]]] = {
    "4 numbers, 64-64": (Box((4,)), Discrete(2), {"agent": "dqn", "network": dense(64, "relu")}),
    "164 numbers, 256-256": (
        Box((164,)),
        Box((2,), (-1.0,), (1.0,)),
        {"agent": "sac", "network": dense(256, "relu")},
    ),
    "84 x 84 x 4 bytes, 256-256": (
        Box((84, 84, 4), (0.0,), (255.0,), "uint8"),
        Discrete(6),
        {"agent": "dqn", "network": [{"type": "flatten"}, {"type": "dense", "size": 16}, *dense(256, "relu")]},
    ),
}
SIZES = {"10 thousand parameters": 10_000, "100 thousand parameters": 100_000, "2 million parameters": 2_000_000}
COLUMNS = {
    "cpu_us": "CPU us each",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
    "per_second": "each core, /s",
    "megabytes": "MB",
}


def main() -> int:
    quick = is_quick(__doc__)
    count, seconds = (50, 2.0) if quick else (500, 10.0)
    runs: Runs = {}
    # This comes first, since it forks, which is not safe once JAX has started its threads.
    note(runs, "driver's status server, a worker asks whether it is over", questions(count))
    for shape in SHAPES:
        repetitions = count // 10 if "bytes" in shape else count
        note(runs, f"learner, a batch of 64 timesteps: {shape}", batches(shape, repetitions))
    note(runs, "learner, a silent worker, one second", silence(50 if quick else SILENT_WORKERS, seconds))
    for size in SIZES:
        note(runs, f"parameter server, a gradient: {size}", gradients(SIZES[size], seconds / 5))
    ray_runs(runs, count)
    return conclude(str(__doc__), runs, [], quick, COLUMNS, cost=None)


def note(runs: Runs, name: str, run: Run) -> None:
    print(f"{name}: {run['cpu_us']:.1f} us", file=sys.stderr, flush=True)
    runs[name] = [run]


# The learner. Its worker is a thread of this process, so CPU time is that of the learner's thread.


def batches(shape: str, count: int) -> Run:
    """Receives batches, checks them, stores them in the memory and answers with the policy, as a busy learner does."""
    from steppe.net.messagepack import pack
    from steppe.net.protocol import Channel
    from steppe.runners.engines.asynchronous.wire.batches import BatchFormat, from_message, to_message
    from steppe.runners.engines.asynchronous.wire.board import Board

    observation, action, fields = SHAPES[shape]
    core = core_of(observation, action, fields)
    board = Board()
    board.post(core.weights(), 0)
    board.note(0, {})
    form = BatchFormat(core.task, observation, action)
    message = {**to_message(form.allocate(core.task.rows_for(1)[1], 1)), "sequence": 1, "has": -1, "session": ""}
    here, there = socket.create_server(("127.0.0.1", 0)), socket.socket()
    there.connect(here.getsockname())
    worker, served = Channel(there), Channel(here.accept()[0])
    served.limit = worker.limit = 2**30

    def work() -> None:
        for _ in range(count + WARM_UP):
            worker.send(message, 60.0)
            worker.receive(60.0)

    thread = threading.Thread(target=work)
    thread.start()
    network = memory = 0.0
    for number in range(count + WARM_UP):
        began = time.thread_time()
        batch = from_message(served.receive(60.0), form, 1)
        answer = {"op": "taken"} | board.news(-1, "")
        served.send(answer, 60.0)
        middle = time.thread_time()
        core.take_in(batch)
        if number >= WARM_UP:
            network += middle - began
            memory += time.thread_time() - middle
    thread.join()
    sizes = len(pack(message)), len(pack(answer))
    return figures((network + memory) / count, *sizes) | {"network_us": 1e6 * network / count}


def core_of(observation: Space, action: Space, fields: dict[str, Any]) -> Any:
    from steppe.runners.compilation import prepare_jax
    from steppe.runners.engines.asynchronous.learner.core_factory import make_core
    from steppe.spec_files import load_experiment

    prepare_jax()
    agent = {"type": fields["agent"], "learning_starts": 10**8, "memory": {"capacity": 20_000}}
    given = {"name": "x", "environment": "workers", "run_mode": "async", "total_timesteps": 10**9, "seed": 1}
    spec = load_experiment(None, {**given, "agent": agent, "network": fields["network"]}, [], Path.cwd(), options=False)
    core = make_core(spec, (observation, action), None)
    core.begin(1)
    return core


def silence(workers: int, seconds: float) -> Run:
    """Workers that have joined and send nothing; memory is that of both ends of a connection."""
    from steppe.runners.engines.asynchronous.learner.worker_server import open_server
    from steppe.runners.engines.asynchronous.wire.access import LearnerAccess
    from steppe.runners.engines.asynchronous.wire.task import Task
    from steppe.runners.engines.asynchronous.worker.connection import LearnerAddress, LearnerConnection
    from steppe.specs.running.asynchronous import AsyncSpec

    observation, action, _ = SHAPES["164 numbers, 256-256"]
    server = open_server(AsyncSpec(), "127.0.0.1", 0, LearnerAccess(None, None))
    server.board.offer(Task(), (observation, action))
    address = "{}:{}".format(*server.address)
    links = [LearnerConnection(LearnerAddress(address), (observation, action), 1) for _ in range(workers)]
    links[0].join()
    before = megabytes_of(os.getpid())
    for link in links[1:]:
        link.join()
    megabytes = (megabytes_of(os.getpid()) - before) / workers
    cpu, began = time.process_time(), time.monotonic()
    time.sleep(seconds)
    cpu, passed = time.process_time() - cpu, time.monotonic() - began
    server.close("measured")
    return figures(cpu / workers / passed, 0, 0, megabytes)


# Parameter servers and the driver.


def gradients(size: int, seconds: float) -> Run:
    """Steps of Adam in a server, without messages."""
    from steppe.runners.engines.distributed.parameter_server import (
        ParameterServer,
        Push,
        Segment,
        ShardConfig,
        fresh_state,
    )
    from steppe.specs.learning.optimizer import Adam

    server = ParameterServer(ShardConfig([Segment(0, size, Adam(type="adam"), 1e-3)]))
    server.restore(fresh_state(np.zeros(size, np.float32), np.zeros(0, np.float32), 0, None))
    gradients = np.random.default_rng(0).standard_normal((4, size)).astype(np.float32)
    began, pushes = time.process_time(), 0
    while time.process_time() - began < seconds:
        pushes += 1
        server.push(Push(worker=0, sequence=pushes, read=0, gradients=gradients))
    cpu = (time.process_time() - began) / pushes / len(gradients)
    return figures(cpu, 4 * size, 4 * size)


def questions(count: int) -> Run:
    """Requests to the status server of a driver's Pod, as every worker's Pod sends now and then."""
    from steppe.platforms.kubernetes.pod.pool_client import DriverClient
    from steppe.platforms.kubernetes.pod.status_server import StatusServer

    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "status.json").write_text(json.dumps({"state": "running", "timestep": 1, "metrics": {}}))
            server = StatusServer(Path(folder), "token", lambda: {"is_over": False}, takes_requests=False)
            os.write(writing, str(server.open(0, "127.0.0.1")).encode())
            time.sleep(1e6)
    port = int(os.read(reading, 10))
    asker = DriverClient("127.0.0.1", "token", 10.0, port)
    asker.wait()
    cpu = cpu_of(pid)
    for _ in range(count):
        assert asker.ask() is not None
    run = figures((cpu_of(pid) - cpu) / count, 120, 200, megabytes_of(pid))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return run


def ray_runs(runs: Runs, count: int) -> None:
    """Ray's own costs: of a server for each push, and of the driver for each order."""
    import ray

    from steppe.runners.ray.ray_session import ray_session
    from steppe.specs.running.distributed import RaySpec

    with ray_session(RaySpec(), cpus=4.0):
        for size in (10_000, 100_000):
            name = f"parameter server, a push of 4 gradients through Ray: {size:,} parameters"
            note(runs, name, pushes(ray, size, count))
        note(runs, "driver, an order and its report through Ray", orders(ray, count))


def pushes(ray: Any, size: int, count: int) -> Run:
    from steppe.runners.engines.distributed.parameter_server import (
        ParameterServer,
        Push,
        Segment,
        ShardConfig,
        fresh_state,
    )
    from steppe.specs.learning.optimizer import Adam

    class Server(ParameterServer):
        def pid(self) -> int:
            return os.getpid()

    class Pusher:
        def work(self, server: Any, count: int) -> None:
            import ray

            gradients = np.ones((4, size), np.float32)
            for _ in range(count):
                ray.get(server.push.remote(Push(id(self), time.monotonic_ns(), 0, gradients)))

    server = ray.remote(Server).options(num_cpus=0).remote(ShardConfig([Segment(0, size, Adam(type="adam"), 1e-3)]))
    ray.get(server.restore.remote(fresh_state(np.zeros(size, np.float32), np.zeros(0, np.float32), 0, None)))
    pid = ray.get(server.pid.remote())
    workers = [ray.remote(Pusher).options(num_cpus=0).remote() for _ in range(2)]
    ray.get([worker.work.remote(server, WARM_UP) for worker in workers])
    cpu = cpu_of(pid)
    ray.get([worker.work.remote(server, count // 2) for worker in workers])
    run = figures((cpu_of(pid) - cpu) / count, 16 * size, 4 * size, megabytes_of(pid))
    for actor in [server, *workers]:
        ray.kill(actor)
    return run


def orders(ray: Any, count: int) -> Run:
    from steppe.runners.engines.distributed.messages import WorkOrder, WorkReport

    class Worker:
        def collect(self, order: WorkOrder) -> WorkReport:
            return WorkReport(0, 4, 5_000, 12, 64, [200.0] * 12, [200] * 12, {"loss": 0.1, "entropy": 0.6}, 4)

    workers = [ray.remote(Worker).options(num_cpus=0).remote() for _ in range(4)]
    order = WorkOrder(workers[:2], 1000, 0.2, 1_000_000, len(workers))
    ray.get([worker.collect.remote(order) for worker in workers])
    cpu, done = time.process_time(), 0
    waiting = [worker.collect.remote(order) for worker in workers]
    while done < count:
        ready, waiting = ray.wait(waiting, num_returns=1)
        done += len(ray.get(ready))
        waiting.append(workers[done % len(workers)].collect.remote(order))
    run = figures((time.process_time() - cpu) / done, 0, 0, megabytes_of(os.getpid()))
    for worker in workers:
        ray.kill(worker)
    return run


def figures(cpu: float, bytes_up: int, bytes_down: int, megabytes: float = 0.0) -> Run:
    return {
        "version": __version__,
        "cpu_us": 1e6 * cpu,
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
        "per_second": 1.0 / cpu if cpu else 0.0,
        "megabytes": megabytes,
    }


def cpu_of(pid: int) -> float:
    """Seconds of CPU time that a process has used in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    sys.exit(main())
