"""`steppe.train`: an experiment in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steppe.experiments.experiment import Experiment


def train(
    environment: str | dict[str, Any],
    agent: str | dict[str, Any] = "ppo",
    *,
    folder: str | Path | None = None,
    progress: bool = True,
    **fields: Any,
) -> Experiment:
    """Trains here and now; `fields` are those of an experiment file, such as total_timesteps, network or seed.

    The results go to `folder`; without one to experiments/ in a project and to ./steppe-runs/ elsewhere.
    """
    from steppe.cli.progress import display

    experiment = Experiment(environment=environment, agent=agent, folder=folder, **fields)
    with display(experiment.spec, quiet=not progress) as shows:
        experiment.start(on_progress=shows.update, announce=shows.announce)
    return experiment
