"""Projects, run folders and the life cycle of an experiment: one state machine, one owner of each state.

`steppe.experiments()` lists the experiments. The package has the same name, so it can be called.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steppe.experiments.experiment import Experiment


def listed(start: str | Path = ".") -> list[Experiment]:
    """All experiments known from the folder `start`: those of the project around it and of its steppe-runs/."""
    from steppe.experiments.experiment import Experiment
    from steppe.experiments.project import known_stores

    stores = known_stores(Path(start).absolute())
    return [Experiment.open(folder.path) for store in stores for folder in store.folders()]


class _Package(ModuleType):
    """This package, as `steppe.experiments(start)`."""

    def __call__(self, start: str | Path = ".") -> list[Experiment]:
        return listed(start)


sys.modules[__name__].__class__ = _Package
