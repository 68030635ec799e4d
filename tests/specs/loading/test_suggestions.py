import pytest

from steppe.specs.loading.suggestions import OF_AGENTS, did_you_mean, misplaced, nearest, quoted

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


def test_names_of_other_libraries_lead_to_ours():
    assert misplaced("lr", ["learning_rate", "discount"]) == '; did you mean "learning_rate"?'
    assert misplaced("lr", ["name", "agent"]) == '; did you mean "agent.learning_rate"?'
    assert misplaced("learning_rate", ["name", "agent"]) == '; did you mean "agent.learning_rate"?'
    assert misplaced("seeed", ["name", "agent"]) == ""


def test_every_setting_that_is_proposed_exists():
    from steppe import agents

    settings = {name for agent in agents.names() for name in agents.settings_class(agent).model_fields}
    assert set(OF_AGENTS) <= settings


def test_words_are_listed_as_people_do():
    assert quoted(["a"]) == '"a"'
    assert quoted(["a", "b", "c"]) == '"a", "b" or "c"'
