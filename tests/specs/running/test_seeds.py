"""The option `--seeds`."""

from __future__ import annotations

from typing import Any

import pytest

from steppe.errors import UserError
from steppe.specs.running.seeds import read_seeds


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        ("3", (1, 2, 3)),
        ("1", (1,)),
        ("3,7,12", (3, 7, 12)),
        ("0, 5", (0, 5)),
        ("7,", (7,)),
        (2, (1, 2)),
        ([4, 2], (4, 2)),
        (range(3), (0, 1, 2)),
        (f"{2**32 - 1},1", (2**32 - 1, 1)),
    ],
)
def test_a_number_says_how_many_and_a_list_says_which(given: Any, seeds: tuple[int, ...]) -> None:
    assert read_seeds(given) == seeds


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0", "wrong number of seeds 0; give a number from 1 to 100"),
        ("101", "wrong number of seeds 101"),
        (-1, "wrong number of seeds -1"),
        (True, "wrong number of seeds True"),
        ("", 'wrong seeds ""'),
        (",", 'wrong seeds ","'),
        ("1,,2", 'wrong seeds "1,,2"'),
        ("one", 'wrong seeds "one"'),
        ("-3", 'wrong seeds "-3"'),
        ("1.5", 'wrong seeds "1.5"'),
        ("1,2,1", "the seed 1 is given twice"),
        (f"{2**32},1", "wrong seed 4294967296"),
        ([], "0 seeds are given"),
        (range(101), "101 seeds are given"),
        ([1, "2"], "wrong seed '2'"),
    ],
)
def test_what_is_wrong_with_seeds_is_said(given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_seeds(given)
