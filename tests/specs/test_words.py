import pytest

from steppe.specs.words import did_you_mean, nearest, quoted

AGENTS = ["ppo", "dqn", "vpg", "random", "constant"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("pppo", "ppo"),
        ("PPO", "ppo"),
        ("dnq", "dqn"),
        ("randm", "random"),
        ("Constant", "constant"),
        ("const", "constant"),
        ("xyzzy", None),
    ],
)
def test_the_nearest_word_is_the_one_meant(word, expected):
    assert nearest(word, AGENTS) == expected


def test_separators_and_case_do_not_count():
    assert nearest("Multi_Threaded", ["single", "multi-threaded"]) == "multi-threaded"


def test_no_choices_have_no_nearest():
    assert nearest("ppo", []) is None


def test_did_you_mean_ends_a_sentence_or_says_nothing():
    assert did_you_mean("pppo", AGENTS) == '; did you mean "ppo"?'
    assert did_you_mean("xyzzy", AGENTS) == ""


def test_words_are_listed_as_people_do():
    assert quoted(["a"]) == '"a"'
    assert quoted(["a", "b", "c"]) == '"a", "b" or "c"'
