"""Compiled programs are cached between runs, complete or not at all."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

from steppe.runners import compilation
from steppe.runners.compilation import jit_for_few, jit_for_learning, jit_for_threads

COMPILES = """
import jax
from steppe.runners.compilation import prepare_jax
prepare_jax()
print(jax.jit(lambda x: x * 3 + 1)(2.0))
"""


def compile_something(cache):
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMPILES],
        env=os.environ | {"STEPPE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.stdout == "7.0\n", finished.stderr
    return finished


@pytest.mark.parametrize("left", [0, 0.5])
def test_an_entry_that_was_cut_short_is_replaced(tmp_path, left):
    compile_something(tmp_path)
    entries = sorted(tmp_path.glob("*-cache"))
    assert entries
    whole = {entry: entry.read_bytes() for entry in entries}
    for entry, content in whole.items():
        entry.write_bytes(content[: int(len(content) * left)])
    finished = subprocess.run(
        [sys.executable, "-c", COMPILES],
        env=os.environ | {"STEPPE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.stdout == "7.0\n"
    assert {entry: len(entry.read_bytes()) for entry in entries} == {entry: len(c) for entry, c in whole.items()}
    compile_something(tmp_path)


def test_a_cache_folder_that_cannot_be_made_is_only_a_pity(tmp_path):
    (tmp_path / "file").write_text("")
    finished = compile_something(tmp_path / "file" / "cache")
    assert "not kept" in finished.stderr


def test_programs_for_few_rows_have_plain_products():
    rows, matrix = jax.numpy.ones((8, 64)), jax.numpy.ones((64, 64))
    program = jit_for_few(lambda rows, matrix: jax.numpy.tanh(rows @ matrix))
    assert program(rows, matrix).shape == (8, 64)
    assert "ynn" not in program.lower(rows, matrix).compile().as_text()


LOOPS = """
import jax
from steppe.runners.compilation import jit_for_learning, prepare_jax
prepare_jax(xla_threads=2)
loop = lambda numbers: jax.numpy.tanh(numbers) * numbers
programs = [jit(loop).lower(jax.numpy.ones((2000, 1000))).compile() for jit in (jax.jit, jit_for_learning)]
print(['outer_dimension_partitions":["2"]' in program.as_text() for program in programs])
"""


def test_programs_for_learning_divide_no_loop_between_threads():
    """By default XLA divides this loop between two threads; updates have many small loops."""
    finished = subprocess.run(
        [sys.executable, "-c", LOOPS],
        env={name: value for name, value in os.environ.items() if name != "NPROC"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.stdout == "[True, False]\n", finished.stderr


@pytest.mark.parametrize(
    ("name", "jit"),
    [("PLAIN_PRODUCTS", jit_for_few), ("NO_SHARING", jit_for_threads), ("WHOLE_LOOPS", jit_for_learning)],
)
def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch, name, jit):
    monkeypatch.setattr(compilation, name, (("xla_cpu_no_such_option", ""),))
    assert jit(lambda number: number + 1)(1) == 2


def test_programs_for_threads_compute_the_same():
    rows, matrix = jax.numpy.arange(512.0).reshape(8, 64) / 512, jax.numpy.eye(64) + 0.5
    results = [jit(lambda rows, matrix: rows @ matrix)(rows, matrix) for jit in (jax.jit, jit_for_threads)]
    assert jax.numpy.allclose(*results, rtol=1e-6)
