"""A worker: a Ray actor that collects in environments of its own and sends gradients to the parameter servers."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from steppe.compat.jax_private import share_gpu_memory
from steppe.errors import SteppeError, UserError
from steppe.runners.engines.distributed.exchange import Exchange, ServersLost
from steppe.runners.engines.distributed.messages import WorkerConfig, WorkOrder, WorkReport
from steppe.runners.ray.log_capture import LogCapture
from steppe.runners.ray.ray_session import die_with_parent
from steppe.specs.user_code import has_traceback, traceback_of

if TYPE_CHECKING:
    from steppe.runners.engines.distributed.rollout_learner import LearnedRollouts, StartingPoint


log = logging.getLogger(__name__)


class GradientWorker:
    """Carries out one order after the other."""

    def __init__(self, config: WorkerConfig) -> None:
        """Returns at once; everything that may fail is done in `begin`."""
        die_with_parent()
        self.config = config
        self._capture = LogCapture()
        self._work: Any = None

    def begin(self) -> WorkReport:
        """Builds environments, agent and compiled programs."""
        report = WorkReport(self.config.number)
        with self._capture, _errors_into(report):
            self._build()
        report.log = self._capture.take_lines()
        return report

    def collect(self, order: WorkOrder) -> WorkReport:
        """Sends pushes that the servers apply at once; their answers bring the other workers' updates."""
        report = WorkReport(self.config.number)
        started = time.monotonic()
        with self._capture, _errors_into(report):
            self._exchange.connect(order.servers)
            self._push_on(order, report, started + order.seconds)
        return self._finished(report, started)

    def contribute(self, order: WorkOrder) -> WorkReport:
        """Sends one push, computed at the newest parameters, which servers hold until all workers have sent theirs."""
        report = WorkReport(self.config.number)
        started = time.monotonic()
        with self._capture, _errors_into(report):
            self._exchange.connect(order.servers)
            self._exchange.pull()
            done = self._run(self._base(), order, report)
            if done.is_healthy:
                self._exchange.hold(done.gradients, done.seen)
                report.pushes = 1
        return self._finished(report, started)

    def arrays(self) -> dict[str, Any]:
        """The part of the checkpoint's state that only this worker has."""
        arrays: dict[str, Any] = self._work.arrays()
        return arrays

    def close(self) -> None:
        """Ends the environments."""
        if self._work is not None:
            self._work.close()

    def _build(self) -> None:
        config = self.config
        sys.path += [path for path in config.paths if path not in sys.path]
        _share_gpu()
        import ray

        from steppe.runners.engines.distributed.gradient_tape import parts_of
        from steppe.runners.engines.distributed.plan import worker_engine
        from steppe.runners.engines.distributed.rollout_learner import CompiledRolloutLearner, HostRolloutLearner
        from steppe.runners.simulators import wait_for_simulator
        from steppe.specs.experiment import ExperimentSpec

        spec = ExperimentSpec.model_validate(config.spec)
        if spec.platform == "kubernetes":
            # The simulator runs in this worker's own Pod, which may start later than the driver's.
            wait_for_simulator(spec.environment)
        engine = worker_engine(spec)
        self._parts = parts_of(engine.agent)
        if engine.rollout is not None:
            self._work = CompiledRolloutLearner(engine.agent, engine.rollout, config.rollouts)
        else:
            self._work = HostRolloutLearner(engine.agent, engine.envs, config.rollouts)
        self._work.begin(config.seed, config.number, config.left)

        def receive(sent: Sequence[Any], seconds: float) -> list[Any]:
            return received(ray, sent, seconds)

        self._exchange = Exchange(config.number, config.borders, receive, config.timeout)

    def _push_on(self, order: WorkOrder, report: WorkReport, deadline: float) -> None:
        exchange = self._exchange
        if exchange.is_waiting:
            # From an earlier order, which ended because a server was lost.
            self._settle(report)
        exchange.pull()
        base = self._base()
        while report.pushes < order.pushes and time.monotonic() < deadline:
            read = [version + base.ahead for version in exchange.versions]
            done = self._run(base, order, report)
            if not done.is_healthy:
                return
            report.pushes += 1
            if exchange.is_waiting:
                self._settle(report)
            exchange.push(done.gradients, done.seen, read)
            if self.config.overlaps:
                # The answer arrives while the next rollouts are collected.
                base = self._base(after=done)
            else:
                self._settle(report)
                base = self._base()
        if exchange.is_waiting:
            self._settle(report)

    def _run(self, base: StartingPoint, order: WorkOrder, report: WorkReport) -> LearnedRollouts:
        per_rollout = self._work.timesteps_per_rollout
        timestep = order.timestep + report.timesteps * order.workers
        done: LearnedRollouts = self._work.run(base, self.config.rollouts, timestep, per_rollout * order.workers)
        report.timesteps += done.timesteps
        report.episodes += done.episodes
        report.returns += done.returns
        report.lengths += done.lengths
        report.is_healthy = done.is_healthy
        if len(done.gradients):
            report.learned += 1
            for name, value in done.metrics.items():
                mean = report.metrics.get(name, value)
                report.metrics[name] = mean + (value - mean) / report.learned
        return done

    def _settle(self, report: WorkReport) -> None:
        settled = self._exchange.settle()
        if settled.was_applied:
            report.updates += settled.gradients
        else:
            report.dropped += settled.gradients
        report.staleness += settled.staleness * bool(settled.gradients)

    def _base(self, after: LearnedRollouts | None = None) -> StartingPoint:
        """The newest known parameters, with this worker's own steps if the push `after` is under way."""
        from steppe.runners.engines.distributed.gradient_tape import rates_from
        from steppe.runners.engines.distributed.moments import merged_moments
        from steppe.runners.engines.distributed.rollout_learner import StartingPoint

        exchange = self._exchange
        ahead = 0 if after is None else len(after.gradients)
        version = exchange.versions[0] + ahead
        params, seen = exchange.params.copy(), exchange.seen
        if after is not None:
            params += after.change
            if seen is not None and after.seen is not None:
                seen = merged_moments(seen, after.seen)
        rates = [rates_from(part, version, self._work.rows) for part in self._parts]
        return StartingPoint(params, exchange.target.copy(), version, rates, seen, ahead)

    def _finished(self, report: WorkReport, started: float) -> WorkReport:
        report.log = self._capture.take_lines()
        report.seconds = time.monotonic() - started
        return report


@contextmanager
def _errors_into(report: WorkReport) -> Iterator[None]:
    """Puts errors into the report, for the driver to handle."""
    try:
        yield
    except ServersLost as lost:
        report.lost_servers = lost.indices
    except UserError as error:
        _log_traceback(error)
        report.mistake = str(error)
    except SteppeError as error:
        _log_traceback(error)
        report.fault = str(error)


def _log_traceback(error: SteppeError) -> None:
    """Logs the traceback, which the driver writes to log.txt, if the user's code raised the error."""
    if has_traceback(error):
        log.error("the whole traceback:\n%s", traceback_of(error))


def received(ray: Any, sent: Sequence[Any], seconds: float) -> list[Any]:
    """The value of each Ray reference, or the error if there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    try:
        return ray.get(list(sent), timeout=seconds)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError:
        pass
    values = []
    for each in sent:
        try:
            # Ray reports an actor that is gone at once; the others keep their time, and at least a second, since an
            # answer may still be under way.
            values.append(ray.get(each, timeout=max(deadline - time.monotonic(), 1.0)))
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            values.append(error)
    return values


def _share_gpu() -> None:
    """Leaves memory of a GPU to the other workers that Ray puts there; called before JAX starts."""
    import jax
    import ray

    assigned = ray.get_runtime_context().get_assigned_resources().get("GPU", 0)
    if not assigned:
        jax.config.update("jax_platforms", "cpu")
    elif assigned < 1:
        share_gpu_memory(0.9 * assigned)
