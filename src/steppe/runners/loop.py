"""The training loop: runs the engine chunk by chunk, and in between writes metrics, evaluates and saves."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from steppe.errors import CheckpointError, TrainingDiverged
from steppe.files.durable import storing
from steppe.files.held_folder import HeldFolder
from steppe.policies.policy import Policy
from steppe.records import checkpoints
from steppe.records.checkpoints import Checkpoint
from steppe.runners import checkpoint_size
from steppe.runners._base import Chunk, ChunkLimits, Engine, Progress, RunOutcome
from steppe.runners.compilation import xla_threads
from steppe.runners.effective_settings import effective
from steppe.runners.periodic import PeriodicTrigger
from steppe.runners.play.final_evaluation import remove_evaluation
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.frequency import Frequency
from steppe.tracking.metrics import MetricsWriter

log = logging.getLogger(__name__)

CHUNK_SECONDS = 0.2
"""How long a chunk should last; threads wait between two chunks."""
SPEED_SECONDS = 2.0
"""Over how much recent work timesteps per second are averaged: the timesteps of remote workers arrive in bursts."""
MANIFEST = {"timestep", "episode", "update", "seconds", "mean_return", "mean_length", "best_return", "seed", "shards"}
"""The entries that the manifest of every checkpoint has."""
ENDINGS = {"pause": "paused", "stop": "stopped"}

Request = Callable[[], str | None]
OnProgress = Callable[[Progress], None]


class TrainingLoop:
    """One run of one experiment in this process: progress, metrics, checkpoints, and when to end."""

    def __init__(
        self, spec: ExperimentSpec, engine: Engine, folder: Path | HeldFolder, request: Request, show: OnProgress
    ) -> None:
        self.spec = spec
        self.engine = engine
        self.folder = folder
        self.request = request
        self.show = show
        self.seed = spec.seed or 0
        self.episode_limit, self.timestep_limit = spec.limits
        self.timestep = self.episode = self.update = 0
        self.mean_return: float | None = None
        self.mean_length: float | None = None
        self.best_return: float | None = None
        self.best_policy: Policy | None = None
        self.evaluation: dict[str, Any] | None = None
        self.latest: dict[str, float] = {}
        self.steps_per_second: float | None = None
        self._newest: deque[tuple[int, float]] = deque()
        self.is_warm = False
        self.seconds = 0.0
        self.saved_at: int | None = None
        self._saved_update = 0
        self.written_at: int | None = None
        self.notices: list[str] = []

    def run(self, checkpoint: Checkpoint | None) -> RunOutcome:
        """Trains, from a checkpoint or anew, until a limit or a request ends it; the work so far is always saved."""
        self.show(Progress("compiling"))
        if checkpoint is not None:
            self._restore(checkpoint)
        else:
            self.engine.begin(self.seed)
        self._show_settings()
        self._clock = time.perf_counter() - self.seconds
        self._summaries = self._trigger(self.spec.summary_frequency)
        self._saves = self._trigger(self.spec.saver_frequency)
        evaluation = self.spec.evaluation
        self._evaluations = self._trigger(Frequency(evaluation.every, "t")) if evaluation else None
        resume_from = None if checkpoint is None else self.timestep
        with MetricsWriter(self.folder, resume_from=resume_from) as self._metrics:
            if checkpoint is None:
                self._save()
            self.show(self._progress("compiling"))
            state, reason = self._train()
            self._finish()
            if self.written_at != self.timestep:
                self._write(self.latest)
            self._save()
        return RunOutcome(
            state, reason, self.timestep, self.episode, self.update, self.mean_return, self.seconds, self.notices
        )

    def show_phase(self, phase: str) -> None:
        """Shows a phase after the training."""
        self.show(self._progress(phase))

    def _train(self) -> tuple[str, str]:
        iterations = 1
        while True:
            if ending := self._ending():
                return ending
            iterations = min(iterations, self._iterations_left())
            started = time.perf_counter()
            chunk = self.engine.advance(iterations, self.timestep, self._limits())
            spent = time.perf_counter() - started
            self._count_chunk(chunk, spent)
            if not chunk.is_healthy:
                raise TrainingDiverged(self._divergence())
            if chunk.fault is not None:
                self._finish()
                self._save()
                raise chunk.fault
            if self._evaluations and self._evaluations.is_due(self.timestep, self.episode, self.seconds):
                self._evaluate()
            if self._saves.is_due(self.timestep, self.episode, self.seconds):
                self._save()
            self.show(self._progress("training"))
            if chunk.has_reached_return:
                return "completed", f"the mean return of the last 100 episodes reached {self.spec.stop_at_return:g}"
            iterations = self._next_size(chunk, spent)

    def _ending(self) -> tuple[str, str] | None:
        """(state, reason) if the run is over."""
        if self.timestep_limit is not None and self.timestep >= self.timestep_limit:
            return "completed", f"all {self.timestep_limit:,} timesteps were run"
        if self.episode_limit is not None and self.episode >= self.episode_limit:
            return "completed", f"all {self.episode_limit:,} episodes were run"
        if requested := self.request():
            return ENDINGS[requested], f"asked to {requested}"
        return None

    def _iterations_left(self) -> int:
        """The iterations until the next event that is due at a known timestep."""
        lefts = [s.timesteps_left(self.timestep) for s in (self._saves, self._evaluations) if s]
        if self.timestep_limit is not None:
            lefts.append(self.timestep_limit - self.timestep)
        known = [left for left in lefts if left is not None]
        if not known:
            return self.engine.most_iterations
        return max(1, math.ceil(min(known) / self.engine.timesteps_per_iteration))

    def _next_size(self, chunk: Chunk, spent: float) -> int:
        """The iterations that fill CHUNK_SECONDS; they grow gradually, since the first chunk includes compilation."""
        fitting = int(CHUNK_SECONDS * chunk.iterations / max(spent, 1e-6))
        least = self.engine.least_iterations
        return int(np.clip(fitting, least, max(least, min(8 * chunk.iterations, self.engine.most_iterations))))

    def _limits(self) -> ChunkLimits:
        lefts = [self._saves.episodes_left(self.episode)]
        if self.episode_limit is not None:
            lefts.append(self.episode_limit - self.episode)
        known = [left for left in lefts if left is not None]
        return ChunkLimits(min(known) if known else None, self.spec.stop_at_return)

    def _count_chunk(self, chunk: Chunk, spent: float) -> None:
        """Counts the results of a chunk and writes metrics for each iteration at which they are due."""
        columns = chunk.columns
        before = self.seconds
        self.seconds = time.perf_counter() - self._clock
        # The speed of the first chunk includes compilation.
        if self.is_warm:
            self._measure_speed(int(np.sum(columns.get("timesteps", 0))), spent)
        self.is_warm = True
        # As Python numbers: indexing the arrays one by one would take longer than everything else here.
        counts = (columns[name].tolist() for name in ("timesteps", "episodes", "updates")) if chunk.iterations else ()
        for i, (timesteps, episodes, updates) in enumerate(zip(*counts, strict=True)):
            self.timestep += timesteps
            self.episode += episodes
            self.update += int(updates)
            at = before + (self.seconds - before) * (i + 1) / chunk.iterations
            if self._summaries.is_due(self.timestep, self.episode, at):
                self._summarize(columns, i)
        if chunk.iterations:
            self._update_means(columns, chunk.iterations - 1)
            self._keep_metrics(columns)
        # Without workers there are no iterations, but still current values.
        self.latest = self.latest | {name: float(value) for name, value in chunk.figures.items()}
        if self.spec.evaluation is None and self._is_best(self.mean_return):
            self.best_policy = self.engine.policy(self.timestep)

    def _measure_speed(self, timesteps: int, spent: float) -> None:
        self._newest.append((timesteps, spent))
        while sum(seconds for _, seconds in self._newest) - self._newest[0][1] > SPEED_SECONDS:
            self._newest.popleft()
        taken, seconds = map(sum, zip(*self._newest, strict=True))
        self.steps_per_second = taken / max(seconds, 1e-9)

    def _summarize(self, columns: dict[str, np.ndarray], i: int) -> None:
        self._update_means(columns, i)
        # The number of workers is written even before the first update.
        self._write(_metrics(columns, i) if columns["updates"][i] or "workers" in columns else {})

    def _keep_metrics(self, columns: dict[str, np.ndarray]) -> None:
        """Keeps the metrics of the newest iteration with updates, for the progress and for the last line."""
        learned = np.flatnonzero(columns["updates"])
        if learned.size or "workers" in columns:
            self.latest = _metrics(columns, int(learned[-1]) if learned.size else -1)

    def _update_means(self, columns: dict[str, np.ndarray], i: int) -> None:
        self.mean_return = _number(columns["mean_return"][i])
        self.mean_length = _number(columns["mean_length"][i])

    def _write(self, metrics: dict[str, float]) -> None:
        """One line of metrics.jsonl and the same scalars for TensorBoard."""
        record: dict[str, Any] = {
            "time": time.time(),
            "timestep": self.timestep,
            "episode": self.episode,
            "update": self.update,
            "worker": 0,
            "mean_return": self.mean_return,
            "mean_length": self.mean_length,
            "steps_per_second": self.steps_per_second,
        }
        self._metrics.write(record | metrics)
        self.written_at = self.timestep
        log.debug("timestep %d: episode %d, mean return %s", self.timestep, self.episode, self.mean_return)

    def _evaluate(self) -> None:
        evaluation = self.spec.evaluation
        assert evaluation is not None
        self.show(self._progress("evaluating"))
        # Seeded by the timestep alone: evaluating more or less often must not change the training.
        seed = (self.seed * 1_000_003 + self.timestep) % 2**31
        with self.engine.paused():
            mean_return, mean_length = self.engine.evaluate(evaluation.episodes, evaluation.greedy, seed)
        self._write({"evaluation_return": mean_return, "evaluation_length": mean_length})
        self.evaluation = {"mean": mean_return, "episodes": evaluation.episodes, "timestep": self.timestep}
        log.info("timestep %d: evaluation return %.1f", self.timestep, mean_return)
        if self._is_best(mean_return):
            self.best_policy = self.engine.policy(self.timestep)

    def _is_best(self, value: float | None) -> bool:
        if value is None or (self.best_return is not None and value <= self.best_return):
            return False
        self.best_return = value
        return True

    def _save(self) -> None:
        """Saves checkpoint and policies, once for the same timestep and update."""
        # With slow workers there may be updates without new timesteps.
        if (self.saved_at, self._saved_update) == (self.timestep, self.update):
            return
        self.show(self._progress("saving"))
        with self.engine.paused():
            size = self._save_now()
        self.saved_at, self._saved_update = self.timestep, self.update
        told = f" ({checkpoint_size.readable_size(size)})" if size >= checkpoint_size.LARGE else ""
        log.info("saved at timestep %d%s", self.timestep, told)

    def _save_now(self) -> int:
        """Returns the size of the checkpoint in bytes."""
        manifest = {
            "timestep": self.timestep,
            "episode": self.episode,
            "update": self.update,
            "seconds": self.seconds,
            "mean_return": self.mean_return,
            "mean_length": self.mean_length,
            "best_return": self.best_return,
            "evaluation": self.evaluation,
            "seed": self.seed,
            "shards": self.engine.shards,
            "xla_threads": xla_threads(),
            "settings": self._settings(),
        }
        remove_evaluation(self.folder)
        # The checkpoint comes last: it must not promise a best policy that was not saved.
        folder = self.folder / "policy"
        with storing(folder):
            folder.mkdir(exist_ok=True)  # never the run folder itself, which may have been moved
        self.engine.policy(self.timestep).save(folder)
        if self.best_policy is not None:
            self.best_policy.save(folder / "best")
            self.best_policy = None
        return checkpoints.size_of(checkpoints.save(self.folder, self.timestep, self.engine.snapshot(), manifest))

    def _finish(self) -> None:
        if self.engine.finish():
            self.saved_at = None  # the last checkpoint counts otherwise, so another one is due

    def _restore(self, checkpoint: Checkpoint) -> None:
        for sentence in checkpoint.skipped:
            self._notice(sentence)
        manifest = checkpoint.manifest
        if missing := sorted(MANIFEST - set(manifest)):
            raise CheckpointError(
                f'the checkpoint of timestep {checkpoint.timestep:,} does not say its "{missing[0]}"; it was not made '
                "by a run of this version of Steppe, so start the experiment anew"
            )
        if manifest["shards"] != self.engine.shards:
            raise CheckpointError(
                f"this run was spread over {manifest['shards']} host devices, but JAX is already in use with "
                f"{self.engine.shards} in this process; resume it in a process of its own"
            )
        # Checkpoints of earlier versions have no settings.
        for name, was, now in _differences(manifest.get("settings", {}), self._settings()):
            if name in self.engine.settings_per_worker:
                continue
            raise CheckpointError(
                f"this run was trained with agent.{name} {json.dumps(was)}, but it is {json.dumps(now)} now (a default "
                'of this version?); write it into the "agent" of its experiment.json to train on as before'
            )
        self.engine.restore(checkpoint.arrays, self.seed)
        # Earlier versions wrote counts such as 24.0.
        self.timestep, self.episode, self.update = (int(manifest[name]) for name in ("timestep", "episode", "update"))
        self.seconds, self.best_return = manifest["seconds"], manifest["best_return"]
        self.evaluation = manifest.get("evaluation")  # earlier versions did not keep it
        self.mean_return, self.mean_length = manifest["mean_return"], manifest["mean_length"]
        self.saved_at = self.written_at = self.timestep
        self._saved_update = self.update
        if not self.engine.exact_resume:
            self._notice(self.engine.resume_notice)
        log.info("resumed at timestep %d", self.timestep)

    def _settings(self) -> dict[str, Any]:
        """The agent's settings with all defaults, as JSON: a later version may have other defaults."""
        agent = self.engine.agent
        return {} if agent is None else json.loads(json.dumps(agent.settings.model_dump(mode="json")))

    def _show_settings(self) -> None:
        """Reports the notices of the engine and the run's effective settings."""
        room = checkpoint_size.size_notices(self.spec, self.engine.agent, Path(self.folder))
        for sentence in (*self.engine.notices, *room):
            self._notice(sentence)
        if self.engine.agent is None:
            return
        told = effective(self.spec, self.engine.agent)
        self.show(dataclasses.replace(self._progress("compiling"), effective=told))

    def _notice(self, sentence: str) -> None:
        self.notices.append(sentence)
        log.warning(sentence)
        self.show(self._progress("compiling"))

    def _divergence(self) -> str:
        good = f"the last good checkpoint is of timestep {self.saved_at:,}" if self.saved_at is not None else ""
        return (
            f"the loss became NaN or infinite at timestep {self.timestep:,}; {good}, and a smaller "
            "agent.learning_rate or agent.max_gradient_norm may keep a new run from it"
        )

    def _trigger(self, frequency: Frequency) -> PeriodicTrigger:
        return PeriodicTrigger(frequency, self.timestep, self.episode, self.seconds)

    def _progress(self, phase: str) -> Progress:
        return Progress(
            phase,
            self.timestep,
            self.episode,
            self.update,
            self.mean_return,
            self.mean_length,
            self.best_return,
            self.steps_per_second or 0.0,
            self.seconds,
            self.latest,
            tuple(self.notices),
            evaluation=self.evaluation,
        )


def _metrics(columns: dict[str, np.ndarray], i: int) -> dict[str, float]:
    """The agent's metrics of one iteration."""
    counted = {"timesteps", "episodes", "updates", "mean_return", "mean_length"}
    return {name: float(column[i]) for name, column in columns.items() if name not in counted}


def _number(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _differences(was: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, before, now) of different settings; those that only one of the versions has are left out."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        if was != now:
            yield name, was, now
        return
    for inner in (each for each in was if each in now):
        yield from _differences(was[inner], now[inner], f"{name}.{inner}" if name else inner)
