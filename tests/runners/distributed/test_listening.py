"""What a worker says is heard, but not a flood of it."""

from __future__ import annotations

import logging
import sys

from steppe.runners.distributed.listening import MOST_LINES, Listening


def test_prints_and_logs_are_heard_in_their_order():
    listening = Listening()
    with listening:
        print("one")
        logging.getLogger("steppe.somewhere").info("two")
        print("three\nfo", end="")
        print("ur", file=sys.stderr)
        logging.getLogger("other").warning("five")
        logging.getLogger("other").info("not worth it")
    assert listening.heard() == [
        (logging.INFO, "one"),
        (logging.INFO, "two"),
        (logging.INFO, "three"),
        (logging.INFO, "four"),
        (logging.WARNING, "five"),
    ]
    assert listening.heard() == []


def test_a_flood_is_cut_and_counted():
    listening = Listening()
    with listening:
        for number in range(MOST_LINES + 50):
            print(number)
    lines = listening.heard()
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == (logging.WARNING, "50 more lines")


def test_others_hear_what_they_heard_before(capsys):
    with Listening():
        print("inside")
    print("outside")
    assert capsys.readouterr().out == "outside\n"
