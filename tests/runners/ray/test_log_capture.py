"""A worker's output is captured up to a limit."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from steppe.runners.ray.log_capture import MOST_LINES, LogCapture


def test_printed_and_logged_lines_keep_their_order():
    capture = LogCapture()
    with capture:
        print("one")
        logging.getLogger("steppe.somewhere").info("two")
        print("three\nfo", end="")
        print("ur")
        print("five", file=sys.stderr)
        logging.getLogger("other").warning("six")
        logging.getLogger("other").info("not worth it")
    assert capture.take_lines() == [
        (logging.INFO, "one"),
        (logging.INFO, "two"),
        (logging.INFO, "three"),
        (logging.INFO, "four"),
        (logging.INFO, "five"),
        (logging.WARNING, "six"),
    ]
    assert capture.take_lines() == []


@pytest.mark.parametrize(("settings", "most"), [({}, MOST_LINES), ({"most_lines": 10}, 10)])
def test_a_flood_is_cut_and_counted(settings, most):
    capture = LogCapture(**settings)
    with capture:
        for number in range(most + 50):
            print(number)
    lines = capture.take_lines()
    assert len(lines) == most + 1
    assert lines[-1] == (logging.WARNING, "50 more lines")


def test_captured_lines_are_passed_on(capsys):
    capture = LogCapture(passes_on=True)
    with capture:
        print("one")
        print("two", file=sys.stderr)
    assert capsys.readouterr() == ("one\n", "two\n")
    assert [line for _, line in capture.take_lines()] == ["one", "two"]


def test_a_child_process_may_print_to_the_workers_output(capfd):
    with LogCapture(passes_on=True):
        subprocess.run([sys.executable, "-c", "print('a simulator')"], stdout=sys.stdout, check=True)
    assert capfd.readouterr().out == "a simulator\n"


def test_warnings_that_python_would_print_are_still_printed():
    program = (
        "import logging\n"
        "from steppe.runners.ray.log_capture import LogCapture\n"
        "capture = LogCapture(passes_on=True)\n"
        "with capture:\n"
        "    logging.getLogger('steppe').warning('the learner is gone')\n"
        "    logging.getLogger('steppe').info('not printed')\n"
        "print([line for _, line in capture.take_lines()])\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stderr == "the learner is gone\n"
    assert answer.stdout == "['the learner is gone', 'not printed']\n"


def test_only_output_inside_the_context_is_captured(capsys):
    with LogCapture():
        print("inside")
    print("outside")
    assert capsys.readouterr().out == "outside\n"
