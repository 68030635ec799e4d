"""The output of training in a Jupyter notebook, with a real kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

AT_ONCE = """
from steppe.display import progress
progress.NOTEBOOK_SECONDS = 0.0
"""
TRAINS = """
import steppe
steppe.train("CartPole-v1", agent="ppo", total_timesteps=40_000, name="first")
"""
TELLS = """
from steppe.runners import Progress
from steppe.specs.experiment import ExperimentSpec
fields = {"name": "first", "environment": "CartPole-v1", "agent": "ppo", "total_timesteps": 500}
with progress.display(ExperimentSpec.model_validate(fields)) as shown:
    shown.update(Progress("training", 100))
    shown.update(Progress("training", 200))
    shown.announce("note: short")
    shown.update(Progress("training", 300))
"""


def outputs(folder: Path, code: str) -> list[Any]:
    """The outputs of a cell in the notebook's file."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(AT_ONCE + code)])
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return list(book.cells[0].outputs)


@pytest.mark.timeout(180)
def test_the_figures_of_a_run_are_one_output_that_is_replaced(tmp_path: Path) -> None:
    kept = outputs(tmp_path, TRAINS)
    figures = [output.data["text/plain"] for output in kept if output.output_type == "display_data"]
    assert len(figures) == 1
    assert figures[0].startswith("41k of 40k timesteps (100%)")
    printed = "".join(output.text for output in kept if output.output_type == "stream")
    assert printed.startswith("first: ppo on CartPole-v1\n")
    assert "\r" not in printed
    assert "timesteps (" not in printed


@pytest.mark.timeout(180)
def test_a_note_is_an_output_between_the_figures_before_and_after_it(tmp_path: Path) -> None:
    kept = [output.get("text") or output.data["text/plain"] for output in outputs(tmp_path, TELLS)]
    assert [text.partition("(")[0] for text in kept] == [
        "first: ppo on CartPole-v1\n",
        "200 of 500 timesteps ",
        "note: short\n",
        "300 of 500 timesteps ",
    ]
