"""Several seeds of one experiment: `5` means 1, 2, 3, 4, 5, and `3,7,12` means these."""

from __future__ import annotations

from collections.abc import Iterable

from steppe.errors import UserError

MOST_SEEDS = 100
"""The largest number of seeds in a group."""
LARGEST_SEED = 2**32 - 1


def read_seeds(given: str | int | Iterable[int]) -> tuple[int, ...]:
    """Parses the seeds of an option or an argument; a UserError explains mistakes."""
    if isinstance(given, str):
        words = [word.strip() for word in given.split(",")]
        if len(words) == 1:
            return _first(_whole(words[0], given))
        # A comma at the end makes a list of one number, as in Python.
        return _checked([_whole(word, given) for word in (words if words[-1] else words[:-1])])
    if isinstance(given, int):
        return _first(given)
    return _checked(list(given))


def _first(count: int) -> tuple[int, ...]:
    if isinstance(count, bool) or not 1 <= count <= MOST_SEEDS:
        raise UserError(
            f"wrong number of seeds {count}; give a number from 1 to {MOST_SEEDS}, or the seeds themselves, such as "
            "1,2,3"
        )
    return tuple(range(1, count + 1))


def _checked(seeds: list[int]) -> tuple[int, ...]:
    if not 1 <= len(seeds) <= MOST_SEEDS:
        raise UserError(f"{len(seeds)} seeds are given; give from 1 to {MOST_SEEDS}")
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
            raise UserError(f"wrong seed {seed!r}; a seed is a whole number from 0 to {LARGEST_SEED}")
        if seeds.count(seed) > 1:
            raise UserError(f"the seed {seed} is given twice; the same seed gives the same run, so leave one out")
    return tuple(seeds)


def _whole(word: str, given: str) -> int:
    if not word.isascii() or not word.isdecimal():
        raise UserError(f'wrong seeds "{given}"; give how many, such as 5, or the seeds themselves, such as 1,2,3')
    return int(word[:20])
