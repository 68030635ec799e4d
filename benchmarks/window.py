"""What training costs inside a process, once it is under way."""

from __future__ import annotations

import time


class Window:
    """From the first mark at or after `warm_up` timesteps, when all is imported and compiled, to the last mark."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up = warm_up
        self.first: tuple[int, float, float] | None = None
        self.last: tuple[int, float, float] | None = None

    def mark(self, timestep: int) -> None:
        """Notes the CPU time and the wall time."""
        if self.first is None and timestep < self.warm_up:
            return
        self.last = (timestep, self.cpu_seconds(), time.perf_counter())
        self.first = self.first or self.last

    def cpu_seconds(self) -> float:
        """Of all threads of this process."""
        return time.process_time()

    def costs(self) -> dict[str, float]:
        """Per timestep: {"timesteps", "cpu_us", "wall_us", "steps_per_second"}."""
        if self.first is None or self.last is None or self.last == self.first:
            raise RuntimeError(f"the run ended before anything was measured after its {self.warm_up} timesteps")
        timesteps, cpu, wall = (end - start for start, end in zip(self.first, self.last, strict=True))
        return {
            "timesteps": timesteps,
            "cpu_us": 1e6 * cpu / timesteps,
            "wall_us": 1e6 * wall / timesteps,
            "steps_per_second": timesteps / wall,
        }
