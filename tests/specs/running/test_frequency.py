import pytest
from hypothesis import given
from hypothesis import strategies as st

from steppe.errors import SpecError
from steppe.specs._base import Spec
from steppe.specs.loading.validation import validate
from steppe.specs.running.frequency import Frequency

RULE = 'a frequency is written "600s" (seconds), "100e" (episodes) or "5000t" (timesteps); a bare number is seconds'


class Saving(Spec):
    """A spec with a frequency in it."""

    every: Frequency = Frequency(600, "s")


@pytest.mark.parametrize(
    ("written", "amount", "unit"),
    [
        ("600s", 600, "s"),
        ("100e", 100, "e"),
        ("5000t", 5000, "t"),
        ("10e", 10, "e"),
        ("1e3t", 1000, "t"),
        ("0.5 s", 0.5, "s"),
        ("600", 600, "s"),
        (600, 600, "s"),
        (1.5, 1.5, "s"),
    ],
)
def test_seconds_episodes_and_timesteps_are_understood(written, amount, unit):
    frequency = validate(Saving, {"every": written}).every
    assert (frequency.amount, frequency.unit) == (amount, unit)


@pytest.mark.parametrize(
    ("written", "shown", "rule"),
    [
        ("often", '"often"', RULE),
        ("10m", '"10m"', RULE),
        ("-5s", '"-5s"', RULE),
        (True, "true", RULE),
        (None, "null", RULE),
        ([600], "[600]", RULE),
        (0, "0", "a frequency must be more than 0"),
        ("0t", '"0t"', "a frequency must be more than 0"),
        ("1e999s", '"1e999s"', "a frequency must be more than 0"),
        ("1.5e", '"1.5e"', "a frequency in episodes or timesteps must be a whole number of them"),
    ],
)
def test_anything_else_is_refused_with_the_rule(written, shown, rule):
    with pytest.raises(SpecError) as error:
        validate(Saving, {"every": written}, source="a.json")
    assert str(error.value) == f"wrong value {shown} in a.json at every; {rule}"


@given(st.floats(min_value=1e-6, max_value=1e12) | st.integers(1, 10**15), st.sampled_from("set"))
def test_what_is_written_is_read_back(amount, unit):
    if unit != "s":
        amount = max(1, int(amount))
    frequency = Frequency(amount, unit)
    assert Frequency.parse(str(frequency)) == frequency


def test_it_is_serialised_as_text():
    assert validate(Saving, {"every": 90}).model_dump(mode="json") == {"every": "90s"}
    assert Saving().model_dump() == {"every": "600s"}
