"""Members of a group of seeds whose training only counts, in real processes without JAX."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from steppe.experiments.locations import local
from steppe.experiments.run_folder.store import RunFolder

CHILD = """
import os
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from conftest import CountingTrainer
from steppe.errors import SteppeError
from steppe.experiments.process.run import run
from steppe.experiments.run_folder.store import RunFolder
folder = RunFolder(Path(sys.argv[1]))
seed = folder.spec().seed
print("cores", os.environ["STEPPE_CORES"])
if seed == 13:
    sys.exit("error: no luck today")
if seed == 14:
    run(folder, trainer=lambda *_, **__: (_ for _ in ()).throw(SteppeError("the loss is NaN")))
counting = CountingTrainer(total=10 * seed, hold=sys.argv[3] == "hold")
sys.exit(run(folder, trainer=counting).exit_code)
"""
TRAINER = Path(__file__).parents[1] / "experiments"
"""The folder whose conftest.py has CountingTrainer."""


def use(monkeypatch: pytest.MonkeyPatch, hold: str = "") -> None:
    """Makes members count to ten times their seed, or with "hold" until they are asked to end; 13 and 14 fail."""

    def command(folder: RunFolder, *, resume: bool = False) -> list[str]:
        return [sys.executable, "-c", CHILD, str(folder.path), str(TRAINER), hold]

    monkeypatch.setattr(local, "training_command", command)
