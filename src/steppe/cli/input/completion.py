"""Shell completion for names of experiments, agents, environments, files and clusters.

It runs at each press of Tab, so it only reads folders and imports nothing slow. Tests compare its lists with their
sources.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROJECT_FILES = ("steppe.json", ".tensorforce.json")
LOOSE_RUNS = "steppe-runs"
SPEC_FILE = "experiment.json"
SUFFIXES = (".json", ".yaml", ".yml", ".toml")
AGENTS = (
    *("random", "constant", "vpg", "a2c", "a3c", "ppo", "trpo", "impala", "dqn", "ddqn", "dqn_nstep", "dqfd", "qr_dqn"),
    *("pqn", "ddpg", "td3", "sac", "naf"),
)
COMPILED = (
    *("Acrobot-v1", "CartPole-v0", "CartPole-v1", "GridWorld-v0", "MountainCar-v0", "MountainCarContinuous-v0"),
    "Pendulum-v1",
)
FAMILIES = ("ALE/Breakout-v5", "ALE/Pong-v5", "HalfCheetah-v5", "Hopper-v5", "LunarLander-v3", "MiniGrid-Empty-5x5-v0")
"""One or two ids of each gymnasium family: importing gymnasium for all of them takes too long."""
KINDS = ("experiment", "environment", "agent", "network", "cluster", "graph")
RUN_MODES = ("single", "multi-threaded", "distributed", "async")
PLATFORMS = ("local", "ray", "kubernetes")


def experiments(incomplete: str) -> list[str]:
    """The experiments of the project and of ./steppe-runs, the newest first."""
    project = _project()
    shelves = [*([project / "experiments"] if project else []), Path.cwd() / LOOSE_RUNS]
    found = [path for shelf in shelves for path in shelf.glob("*") if (path / SPEC_FILE).is_file()]
    return _beginning(incomplete, (path.name for path in sorted(found, key=_changed, reverse=True)))


def agents(incomplete: str) -> list[str]:
    """The agents, and those of the project's configs/agents/."""
    return _beginning(incomplete, [*AGENTS, *_configs("agents")])


def environments(incomplete: str) -> list[str]:
    """The compiled environments, some of gymnasium's, and those of the project's configs/environments/."""
    return _beginning(incomplete, [*COMPILED, *FAMILIES, *_configs("environments")])


def networks(incomplete: str) -> list[str]:
    """The files in configs/networks/."""
    return _beginning(incomplete, _configs("networks"))


def experiment_files(incomplete: str) -> list[str]:
    """The files in configs/experiments/, and those that come with Steppe."""
    shipped = Path(__file__).parents[2] / "experiments" / "templates" / "experiments"
    return _beginning(incomplete, [*_configs("experiments"), *(path.stem for path in shipped.glob("*.json"))])


def graphs(incomplete: str) -> list[str]:
    """The files in configs/graphs/."""
    return _beginning(incomplete, _configs("graphs"))


def cluster_files(incomplete: str) -> list[str]:
    """The files in configs/clusters/."""
    return _beginning(incomplete, _configs("clusters"))


def known_clusters(incomplete: str) -> list[str]:
    """The clusters that were made or registered."""
    home = os.environ.get("STEPPE_CLUSTERS") or "~/.config/steppe/clusters"
    return _beginning(incomplete, sorted(path.stem for path in Path(home).expanduser().glob("*.json")))


def clusters(incomplete: str) -> list[str]:
    """The known clusters, and the files that describe clusters."""
    return [*known_clusters(incomplete), *cluster_files(incomplete)]


def kinds(incomplete: str) -> list[str]:
    """The kinds of files that have a schema."""
    return _beginning(incomplete, KINDS)


def run_modes(incomplete: str) -> list[str]:
    """The run modes."""
    return _beginning(incomplete, RUN_MODES)


def platforms(incomplete: str) -> list[str]:
    """The platforms."""
    return _beginning(incomplete, PLATFORMS)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _project() -> Path | None:
    here = Path.cwd()
    return next(
        (path for path in (here, *here.parents) if any((path / name).is_file() for name in PROJECT_FILES)), None
    )


def _configs(kind: str) -> list[str]:
    project = _project()
    return (
        sorted(path.stem for path in (project / "configs" / kind).glob("*") if path.suffix in SUFFIXES)
        if project
        else []
    )


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
