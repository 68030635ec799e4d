from __future__ import annotations

import pytest

from steppe.display import text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "just now"),
        (42, "42 s ago"),
        (61, "1 min ago"),
        (185, "3 min ago"),
        (3600, "1 h ago"),
        (86399, "23 h ago"),
        (86400, "1 day ago"),
        (3 * 86400, "3 days ago"),
        (20 * 86400, "2 weeks ago"),
    ],
)
def test_ages_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert text.age(1000.0, now=1000.0 + seconds) == words


def test_no_moment_has_no_age() -> None:
    assert text.age(None) == ""


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0"), (950, "950"), (1000, "1k"), (12345, "12.3k"), (999_999, "1M"), (1_200_000, "1.2M"), (3e9, "3B")],
)
def test_counts_are_short(number: float, words: str) -> None:
    assert text.count(number) == words


@pytest.mark.parametrize(
    ("value", "words"), [(None, "-"), (475.04, "475.0"), (-1234.5, "-1234.5"), (0.1234, "0.123"), (1.0, "1")]
)
def test_scores_have_the_digits_that_matter(value: float | None, words: str) -> None:
    assert text.score(value) == words


@pytest.mark.parametrize(("seconds", "words"), [(None, "-"), (8.9, "8 s"), (125, "2:05"), (3723, "1:02:03")])
def test_durations_are_clock_times(seconds: float | None, words: str) -> None:
    assert text.duration(seconds) == words


@pytest.mark.parametrize(("amount", "words"), [(12, "12 B"), (12_000, "12 kB"), (1_500_000, "1.5 MB")])
def test_sizes_have_units(amount: int, words: str) -> None:
    assert text.size(amount) == words


@pytest.mark.parametrize(
    ("ended", "words"), [(1, "the last episode"), (44, "the last 44 episodes"), (2000, "the last 100 episodes")]
)
def test_a_mean_says_of_how_many_episodes_it_is(ended: int, words: str) -> None:
    assert text.last_episodes(ended) == words
