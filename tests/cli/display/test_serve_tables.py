"""`steppe serve report` on a narrow terminal."""

from __future__ import annotations

import io

import pytest

from steppe.cli.display import serve_tables
from steppe.display.console import Console
from steppe.serve.report import Comparison, Interval, PolicyEstimate


@pytest.mark.parametrize("length", [5, 40])
def test_the_comparison_of_policies_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    terminal = Console(highlight=False, width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    monkeypatch.setattr(serve_tables, "console", lambda: terminal)
    interval = Interval(value=500.0, low=495.25, high=500.0)
    name = "p" * length
    estimate = PolicyEstimate(name, None, 12_000, 11_000, 500.0, interval, interval, 8_000.0)
    serve_tables.print_comparison(Comparison((estimate,), (), 12_000, 11_000, 500.0, (), None), 0.95)
    assert isinstance(terminal.file, io.StringIO)
    lines = terminal.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(f"{name} ") and "495.2 .. 500.0" in line for line in lines)
