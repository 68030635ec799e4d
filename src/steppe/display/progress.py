"""Progress of a training: a live panel on a terminal, else lines at growing intervals."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from steppe.display.console import console
from steppe.display.live import LinePace, LivePanel, QuietDisplay, is_notebook, print_line
from steppe.display.text import count, duration, score

if TYPE_CHECKING:
    from rich.console import RenderableType

    from steppe.runners import Progress
    from steppe.specs.experiment import ExperimentSpec

PHASES = {
    "compiling": "compiling the training program...",
    "evaluating": "evaluating the policy...",
    "saving": "saving a checkpoint...",
    "exporting": "exporting the policy...",
    "filming": "exporting the policy and filming an episode...",
}
"""The phases of a run other than training, in words."""
NOTEBOOK_SECONDS = 1.0
WORKER_FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("workers", "workers", count),
    ("updates_per_second", "updates/s", count),
    ("policy_lag", "lag", score),
    ("dropped", "dropped", count),
    ("learner_utilisation", "learner busy", "{:.0%}".format),
)
"""(metric, label, format) of the figures shown of parallel runs."""


def display(spec: ExperimentSpec, quiet: bool = False) -> TrainingDisplay:
    """A panel on a terminal, one replaced line in a notebook, else lines; nothing if `quiet`."""
    if quiet:
        return TrainingDisplay(spec)
    if is_notebook():
        return NotebookLine(spec)
    return TrainingPanel(spec) if console().is_terminal else TrainingLines(spec)


class TrainingDisplay(QuietDisplay):
    """Shows nothing; the base of the displays of a training."""

    def __init__(self, spec: ExperimentSpec) -> None:
        self.title = f"{spec.name}: {spec.agent.type} on {spec.environment.id}"
        self.episodes, self.timesteps = spec.limits
        self.goal = spec.stop_at_return
        self.num_workers = spec.num_workers
        self.latest: Progress | None = None
        self._had_workers = False
        self._told = 0
        self.lasting: set[str] = set()
        """The notices that stay readable when this display is over."""
        self.began = time.monotonic()

    def update(self, progress: Progress) -> None:
        """Called after each chunk of training; announces new notices."""
        self.latest = progress
        self._had_workers = self._had_workers or bool(progress.metrics.get("workers"))
        for notice in progress.notices[self._told :]:
            self.announce(f"note: {notice}")
        self._told = len(progress.notices)

    def done(self) -> float:
        """The share of the training that is done, by the nearest limit: 0 .. 1."""
        if self.latest is None:
            return 0.0
        by_timesteps = self.latest.timestep / self.timesteps if self.timesteps else 0.0
        by_episodes = self.latest.episode / self.episodes if self.episodes else 0.0
        return min(1.0, max(by_timesteps, by_episodes))

    def remaining(self) -> float | None:
        """Seconds left at this speed, at most: reaching `stop_at_return` ends it earlier."""
        if self.latest is None or not self.latest.steps_per_second or not self.done():
            return None
        whole = self.latest.timestep / self.done()
        return (whole - self.latest.timestep) / self.latest.steps_per_second

    def counted(self) -> str:
        """`120k of 500k timesteps`, and the episodes if they are limited too."""
        if self.latest is None:
            return ""
        parts = [
            f"{count(now)} of {count(limit)} {what}"
            for now, limit, what in (
                (self.latest.timestep, self.timesteps, "timesteps"),
                (self.latest.episode, self.episodes, "episodes"),
            )
            if limit
        ]
        return ", ".join(parts)

    def worker_figures(self) -> list[tuple[str, str]]:
        """(label, figure) of the workers of a parallel run; empty for a run in one process."""
        metrics = self.latest.metrics if self.latest is not None else {}
        return [(label, shown(metrics[name])) for name, label, shown in WORKER_FIGURES if name in metrics]

    def doing(self) -> str:
        """The current phase in words; "" while it simply trains."""
        if self.latest is None:
            return "starting..."
        if self.latest.phase == "training" and "workers" in self.latest.metrics and not self._had_workers:
            many = f"{self.num_workers} " if self.num_workers else ""
            return f"starting {many}worker{'' if self.num_workers == 1 else 's'}..."
        return PHASES.get(self.latest.phase, "")


class TrainingLines(TrainingDisplay):
    """Plain lines at growing intervals, for pipes and log files."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__(spec)
        self._pace = LinePace(at_once=True)
        self._doing = ""

    def __enter__(self) -> Self:
        print_line(self.title)
        return self

    def update(self, progress: Progress) -> None:
        """Prints a line if one is due."""
        super().update(progress)
        self.lasting.update(progress.notices)
        doing = self.doing()
        if progress.phase == "compiling" or (doing and not progress.timestep and progress.phase == "training"):
            if doing != self._doing:
                self._say(doing)
            self._doing = doing
        elif progress.timestep and self._pace.is_due():
            self._say(self.sentence())

    def announce(self, sentence: str) -> None:
        """Prints the sentence on a line of its own."""
        print_line(sentence)

    def sentence(self) -> str:
        """The progress as one line."""
        assert self.latest is not None
        speed = f"{count(self.latest.steps_per_second)} steps/s, " if self.latest.steps_per_second else ""
        workers = "".join(f"{figure} {label}, " for label, figure in self.worker_figures())
        return (
            f"{self.counted()} ({self.done():.0%}), mean return {score(self.latest.mean_return)}, "
            f"{speed}{workers}{duration(time.monotonic() - self.began)}"
        )

    def _say(self, line: str) -> None:
        print_line(line)


class NotebookLine(TrainingLines):
    """One line of a notebook's cell, which is replaced; the notebook's file keeps only the last one."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__(spec)
        self._pace = LinePace(at_once=True, seconds=NOTEBOOK_SECONDS, share=0.0)
        self._shown: Any = None

    def __exit__(self, *_: object) -> None:
        """Leaves the last figures where they are."""
        if self._shown is not None and self.latest is not None and self.latest.timestep:
            self._say(self.sentence())

    def announce(self, sentence: str) -> None:
        """Prints the sentence on a line of its own; later figures stand below it."""
        print_line(sentence)
        self._shown = None

    def _say(self, line: str) -> None:
        from IPython.display import display as show

        content = {"text/plain": line}
        if self._shown is None:
            self._shown = show(content, raw=True, display_id=True)
        else:
            self._shown.update(content, raw=True)


class TrainingPanel(LivePanel, TrainingDisplay):
    """A live panel: the bar, the return, the speed, the times."""

    def __init__(self, spec: ExperimentSpec) -> None:
        TrainingDisplay.__init__(self, spec)
        LivePanel.__init__(self)

    def render(self) -> RenderableType:
        """The panel as of now."""
        from rich import panel
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        rows: list[Any] = []
        if self.latest is not None and self.latest.phase != "compiling":
            bar = Table.grid(padding=(0, 2), expand=True)
            bar.add_column(ratio=1)
            bar.add_column(justify="right")
            bar.add_row(ProgressBar(total=1.0, completed=self.done()), f"{self.done():.0%}  {self.counted()}")
            rows += [bar, self._figures()]
        else:
            rows.append(Text(f"{self.doing()}  {duration(time.monotonic() - self.began)}"))
        if self._announced:
            rows.append(Text("\n".join(self._announced), style="bold yellow"))
        return panel.Panel(Group(*rows), title=Text(self.title), title_align="left", padding=(0, 1))

    def _figures(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        assert self.latest is not None
        goal = f" of {score(self.goal)}" if self.goal is not None else ""
        speed = count(self.latest.steps_per_second) if self.latest.steps_per_second else "-"
        remaining = self.remaining()
        grid = Table.grid(padding=(0, 2), expand=True)
        for _ in range(4):
            grid.add_column(ratio=1)
        for row in (
            ("mean return", f"{score(self.latest.mean_return)}{goal}", "best", score(self.latest.best_return)),
            ("episodes", f"{self.latest.episode:,}", "updates", f"{self.latest.update:,}"),
            ("steps/s", speed, "elapsed", duration(time.monotonic() - self.began)),
        ):
            grid.add_row(*row)
        workers = [word for pair in self.worker_figures() for word in pair]
        for start in range(0, len(workers), 4):
            grid.add_row(*workers[start : start + 4])
        # Always one line, so that the panel does not change its height.
        last = self.doing() or (f"at most {duration(remaining)} remaining" if remaining else "")
        return Group(grid, Text(last, no_wrap=True, overflow="ellipsis"))
