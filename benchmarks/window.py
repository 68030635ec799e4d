"""Measures the CPU and wall time of a training inside its process."""

from __future__ import annotations

import time


class Window:
    """Measures from the first mark at or after `warm_up` timesteps to the last mark.

    By the end of the warm-up everything must be imported and compiled.
    """

    def __init__(self, warm_up: int) -> None:
        self.warm_up = warm_up
        self.first: tuple[int, float, float] | None = None
        self.last: tuple[int, float, float] | None = None

    def mark(self, timestep: int) -> None:
        """Records the CPU time and the wall time at a timestep."""
        if self.first is None and timestep < self.warm_up:
            return
        self.last = (timestep, self.cpu_seconds(), time.perf_counter())
        self.first = self.first or self.last

    def cpu_seconds(self) -> float:
        """CPU time of all threads of this process."""
        return time.process_time()

    def costs(self) -> dict[str, float]:
        """Costs per timestep: {"timesteps", "cpu_us", "wall_us", "steps_per_second"}."""
        if self.first is None or self.last is None or self.last == self.first:
            raise RuntimeError(f"the run ended before anything was measured after its {self.warm_up} timesteps")
        timesteps, cpu, wall = (end - start for start, end in zip(self.first, self.last, strict=True))
        return {
            "timesteps": timesteps,
            "cpu_us": 1e6 * cpu / timesteps,
            "wall_us": 1e6 * wall / timesteps,
            "steps_per_second": timesteps / wall,
        }
