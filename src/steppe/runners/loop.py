"""The training loop: asks the engine for chunks of work, and in between writes, measures, saves and listens."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from steppe.errors import CheckpointError, TrainingDiverged
from steppe.files.durable import storing
from steppe.files.held_folder import HeldFolder
from steppe.policies.policy import Policy
from steppe.records import checkpoints
from steppe.records.checkpoints import Checkpoint
from steppe.runners import checkpoint_room
from steppe.runners._base import Chunk, Engine, Limits, Outcome, Progress
from steppe.runners.compilation import xla_threads
from steppe.runners.effective import effective
from steppe.runners.play.final_evaluation import forget
from steppe.runners.schedule import Schedule
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.running.frequency import Frequency
from steppe.tracking.metrics import MetricsWriter

log = logging.getLogger(__name__)

CHUNK_SECONDS = 0.2
"""How long the loop lets the engine work before it looks around; workers in threads wait while it does."""
SPEED_SECONDS = 2.0
"""How much of the newest work timesteps per second are told of: what workers send arrives in bursts."""
MANIFEST = {"timestep", "episode", "update", "seconds", "mean_return", "mean_length", "best_return", "seed", "shards"}
"""What a checkpoint tells beside its arrays."""
NEW_EPISODES = (
    "the environments start new episodes, since a gymnasium environment's state cannot be saved; everything else goes "
    "on exactly"
)
"""What a resumed run says that has no `resume_notice` of its own."""
ENDINGS = {"pause": "paused", "stop": "stopped"}

Request = Callable[[], str | None]
OnProgress = Callable[[Progress], None]


class Loop:
    """One run of one experiment in this process."""

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

    def run(self, checkpoint: Checkpoint | None) -> Outcome:
        """Trains, from a checkpoint or from nothing, until something ends it; the work so far is always saved."""
        self.show(Progress("compiling"))
        if checkpoint is not None:
            self._restore(checkpoint)
        else:
            self.engine.begin(self.seed)
        self._tell_settings()
        self._clock = time.perf_counter() - self.seconds
        self._summaries = self._schedule(self.spec.summary_frequency)
        self._saves = self._schedule(self.spec.saver_frequency)
        evaluation = self.spec.evaluation
        self._evaluations = self._schedule(Frequency(evaluation.every, "t")) if evaluation else None
        resume_from = None if checkpoint is None else self.timestep
        with MetricsWriter(self.folder, resume_from=resume_from) as self._metrics:
            if checkpoint is None:
                self._save()
            # The first chunk of training compiles.
            self.show(self._progress("compiling"))
            state, reason = self._train()
            self._finish()
            if self.written_at != self.timestep:
                self._write(self.latest)
            self._save()
        return Outcome(
            state, reason, self.timestep, self.episode, self.update, self.mean_return, self.seconds, self.notices
        )

    def tell(self, phase: str) -> None:
        """Says what is done now that the training is over."""
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
            self._take_in(chunk, spent)
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
        """(state, reason) when the run is over."""
        if self.timestep_limit is not None and self.timestep >= self.timestep_limit:
            return "completed", f"all {self.timestep_limit:,} timesteps were run"
        if self.episode_limit is not None and self.episode >= self.episode_limit:
            return "completed", f"all {self.episode_limit:,} episodes were run"
        if wish := self.request():
            return ENDINGS[wish], f"asked to {wish}"
        return None

    def _iterations_left(self) -> int:
        """Until the next thing that is due at a certain timestep."""
        lefts = [s.timesteps_left(self.timestep) for s in (self._saves, self._evaluations) if s]
        if self.timestep_limit is not None:
            lefts.append(self.timestep_limit - self.timestep)
        known = [left for left in lefts if left is not None]
        if not known:
            return self.engine.most_iterations
        return max(1, math.ceil(min(known) / self.engine.timesteps_per_iteration))

    def _next_size(self, chunk: Chunk, spent: float) -> int:
        """As many iterations as fill CHUNK_SECONDS; growth is gradual, since the first chunk includes compilation."""
        fitting = int(CHUNK_SECONDS * chunk.iterations / max(spent, 1e-6))
        # Workers that take iterations side by side need one each, however long one takes.
        least: int = getattr(self.engine, "least_iterations", 1)
        return int(np.clip(fitting, least, max(least, min(8 * chunk.iterations, self.engine.most_iterations))))

    def _limits(self) -> Limits:
        lefts = [self._saves.episodes_left(self.episode)]
        if self.episode_limit is not None:
            lefts.append(self.episode_limit - self.episode)
        known = [left for left in lefts if left is not None]
        return Limits(min(known) if known else None, self.spec.stop_at_return)

    def _take_in(self, chunk: Chunk, spent: float) -> None:
        """Counts what a chunk did and writes a summary at each iteration where one is due."""
        columns = chunk.columns
        before = self.seconds
        self.seconds = time.perf_counter() - self._clock
        # The first chunk includes the compilation, so its speed tells nothing.
        if self.is_warm:
            self._note_speed(int(np.sum(columns.get("timesteps", 0))), spent)
        self.is_warm = True
        # As Python's own numbers: taking them out of arrays one by one takes longer than all the rest.
        counts = (columns[name].tolist() for name in ("timesteps", "episodes", "updates")) if chunk.iterations else ()
        for i, (timesteps, episodes, updates) in enumerate(zip(*counts, strict=True)):
            self.timestep += timesteps
            self.episode += episodes
            self.update += int(updates)
            at = before + (self.seconds - before) * (i + 1) / chunk.iterations
            if self._summaries.is_due(self.timestep, self.episode, at):
                self._summarize(columns, i)
        if chunk.iterations:
            self._note_returns(columns, chunk.iterations - 1)
            self._note_metrics(columns)
        # Where all workers are gone no iteration tells it.
        self.latest = self.latest | {name: float(value) for name, value in chunk.figures.items()}
        if self.spec.evaluation is None and self._is_best(self.mean_return):
            self.best_policy = self.engine.policy(self.timestep)

    def _note_speed(self, timesteps: int, spent: float) -> None:
        self._newest.append((timesteps, spent))
        while sum(seconds for _, seconds in self._newest) - self._newest[0][1] > SPEED_SECONDS:
            self._newest.popleft()
        taken, seconds = map(sum, zip(*self._newest, strict=True))
        self.steps_per_second = taken / max(seconds, 1e-9)

    def _summarize(self, columns: dict[str, np.ndarray], i: int) -> None:
        self._note_returns(columns, i)
        # Workers are there before anything is learned.
        self._write(_metrics(columns, i) if columns["updates"][i] or "workers" in columns else {})

    def _note_metrics(self, columns: dict[str, np.ndarray]) -> None:
        """Keeps those of the newest iteration that learned something, for the progress and for a run's last line."""
        learned = np.flatnonzero(columns["updates"])
        if learned.size or "workers" in columns:
            self.latest = _metrics(columns, int(learned[-1]) if learned.size else -1)

    def _note_returns(self, columns: dict[str, np.ndarray], i: int) -> None:
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
        # Seeded by the timestep alone: evaluating more or less often must not change what is learned.
        seed = (self.seed * 1_000_003 + self.timestep) % 2**31
        with self._away():
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
        """Checkpoint and policies; nothing is done twice for the same timestep and update."""
        # Where workers are slow, much may be learned from what they sent before.
        if (self.saved_at, self._saved_update) == (self.timestep, self.update):
            return
        self.show(self._progress("saving"))
        with self._away():
            size = self._save_now()
        self.saved_at, self._saved_update = self.timestep, self.update
        told = f" ({checkpoint_room.written(size)})" if size >= checkpoint_room.LARGE else ""
        log.info("saved at timestep %d%s", self.timestep, told)

    def _save_now(self) -> int:
        """Returns the size of the checkpoint."""
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
            "shards": self.engine.agent.context.shards,
            "xla_threads": xla_threads(),
            "settings": self._settings(),
        }
        forget(self.folder)
        # The checkpoint comes last: a resumed run must not take a best policy for saved that was not.
        folder = self.folder / "policy"
        with storing(folder):
            folder.mkdir(exist_ok=True)  # never the run folder itself, which may have been moved
        self.engine.policy(self.timestep).save(folder)
        if self.best_policy is not None:
            self.best_policy.save(folder / "best")
            self.best_policy = None
        return checkpoints.size_of(checkpoints.save(self.folder, self.timestep, self.engine.snapshot(), manifest))

    def _away(self) -> AbstractContextManager[None]:
        """Around what is no training: those who work for an engine wait meanwhile."""
        away: Callable[[], AbstractContextManager[None]] = getattr(self.engine, "away", nullcontext)
        return away()

    def _finish(self) -> None:
        """No more training: an engine that others work for sends them home, and counts what they leave."""
        finish: Callable[[], bool] = getattr(self.engine, "finish", lambda: False)
        if finish():
            self.saved_at = None

    def _restore(self, checkpoint: Checkpoint) -> None:
        for sentence in checkpoint.skipped:
            self._notice(sentence)
        manifest = checkpoint.manifest
        if missing := sorted(MANIFEST - set(manifest)):
            raise CheckpointError(
                f'the checkpoint of timestep {checkpoint.timestep:,} does not say its "{missing[0]}"; it was not made '
                "by a run of this version of Steppe, so start the experiment anew"
            )
        if manifest["shards"] != self.engine.agent.context.shards:
            raise CheckpointError(
                f"this run was spread over {manifest['shards']} host devices, but JAX is already in use with "
                f"{self.engine.agent.context.shards} in this process; resume it in a process of its own"
            )
        # A checkpoint of before they were kept does not say them.
        for name, was, now in _differences(manifest.get("settings", {}), self._settings()):
            # Of some each worker has its part, which is another when there are more workers.
            if name in getattr(self.engine, "shared_out", ()):
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
            self._notice(getattr(self.engine, "resume_notice", NEW_EPISODES))
        log.info("resumed at timestep %d", self.timestep)

    def _settings(self) -> dict[str, Any]:
        """The agent's settings with all defaults, as JSON: a later version may have others."""
        settings = self.engine.agent.settings
        # A policy of the user's own has none that are known here.
        return {} if settings is None else json.loads(json.dumps(settings.model_dump(mode="json")))

    def _tell_settings(self) -> None:
        """What the run really works with, for whoever writes it down, and what should be known of it."""
        room = checkpoint_room.sentences(self.spec, self.engine.agent, Path(self.folder))
        for sentence in (*getattr(self.engine, "notices", ()), *room):
            self._notice(sentence)
        if self.engine.agent.settings is None:
            return  # a policy of the user's own, of which nothing is known here
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

    def _schedule(self, frequency: Frequency) -> Schedule:
        return Schedule(frequency, self.timestep, self.episode, self.seconds)

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
    """What the agent says of one iteration."""
    counted = {"timesteps", "episodes", "updates", "mean_return", "mean_length"}
    return {name: float(column[i]) for name, column in columns.items() if name not in counted}


def _number(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _differences(was: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, before, now) of what differs; settings that only one of the versions has are none of it."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        if was != now:
            yield name, was, now
        return
    for inner in (each for each in was if each in now):
        yield from _differences(was[inner], now[inner], f"{name}.{inner}" if name else inner)
