"""Output on a narrow terminal: some text is wrapped, commands and names never are."""

from __future__ import annotations

import io
from typing import Any

import pytest

from steppe import agents
from steppe.cli import catalogue
from steppe.cli.starting import running
from steppe.display.console import Console, table, wrapped
from steppe.tensorforce import vocabulary

NAME = "CartPole-v1-ppo-with-a-tuned-learning-rate-1"


@pytest.fixture
def terminal() -> Console:
    return Console(highlight=False, width=80, file=io.StringIO(), force_terminal=True, color_system=None)


def printed(terminal: Console) -> list[str]:
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue().splitlines()


def experiments(name: str) -> Any:
    columns = ("NAME", "STATE", "RUN MODE", "ENVIRONMENT", "AGE")
    listing = table(*columns, drop=("RUN MODE", "AGE", "ENVIRONMENT"))
    listing.add_row(name, "completed", "distributed", "MiniGrid-Empty-5x5-v0", "3 min")
    return listing


def test_a_table_leaves_out_columns_instead_of_breaking_names(terminal: Console) -> None:
    terminal.print(experiments(NAME))
    header, row, note = printed(terminal)
    assert header.split() == ["NAME", "STATE", "ENVIRONMENT"]
    assert row.split() == [NAME, "completed", "MiniGrid-Empty-5x5-v0"]
    assert note == "not shown, as the terminal is too narrow: RUN MODE, AGE"
    assert max(map(len, (header, row, note))) <= 80


def test_a_table_with_room_keeps_all_columns(terminal: Console) -> None:
    terminal.print(experiments("first"))
    header, row = printed(terminal)
    assert header.split() == ["NAME", "STATE", "RUN", "MODE", "ENVIRONMENT", "AGE"]
    assert row.split()[-2:] == ["3", "min"]


def test_a_name_wider_than_the_terminal_is_not_cut(terminal: Console) -> None:
    terminal.print(experiments("n" * 90))
    assert "n" * 90 in printed(terminal)[1]


def test_prose_in_a_table_is_wrapped_between_words(terminal: Console) -> None:
    listing = table("AGENT", "WHAT IT DOES")
    listing.add_row("dqn", "A long sentence of short words that goes on and on. " * 4)
    terminal.print(listing)
    lines = printed(terminal)
    assert len(lines) > 3
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(" ".join(lines[1:]).split()) == "dqn " + " ".join(
        ["A long sentence of short words that goes on and on."] * 4
    )


def test_prose_stands_below_its_row_if_there_is_no_room_beside_it(terminal: Console) -> None:
    listing = table("SETTING", "TYPE", "DEFAULT", "WHAT IT DOES", drop=("TYPE",))
    sentence = "How much of it counts, beside what `the_name_of_another_setting` says of the same thing."
    listing.add_row("memory.the_longest_name_of_a_setting", "number", '"a_word_of_20_letters"', sentence)
    listing.add_row("short", "number", "0.5", "Short.")
    terminal.print(listing)
    lines = printed(terminal)
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[:2]] == [
        ["SETTING", "DEFAULT"],
        ["memory.the_longest_name_of_a_setting", '"a_word_of_20_letters"'],
    ]
    assert " ".join(" ".join(lines[2:4]).split()) == sentence
    assert [line.rstrip() for line in lines[2:]][-1] == "not shown, as the terminal is too narrow: TYPE"
    assert [line.split() for line in lines[4:6]] == [["short", "0.5"], ["Short."]]


@pytest.mark.parametrize("agent", ["dqn", "ddpg", "td3", "naf"])
def test_the_settings_of_an_agent_fit_the_terminal(terminal: Console, agent: str) -> None:
    settings = agents.settings_class(agent)
    terminal.print(catalogue._settings_table(settings, vocabulary.spelled(settings)))
    lines = printed(terminal)
    assert max(map(len, lines)) <= 80
    assert "  learning_rate" in {line.partition("   ")[0] or line[:15] for line in lines}


def test_commands_to_copy_are_one_line_each(terminal: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "console", lambda: terminal)
    command = f"steppe policy export steppe-runs/{NAME}/policy --to policy-of-the-first-evening.onnx"
    running.print_commands([command])
    assert printed(terminal) == [f"  {command}"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short", ["short"]),
        ("  folder       /" + "a" * 90, ["  folder       /" + "a" * 90]),
        ("note: " + "word " * 16, ["note: " + "word " * 14 + "word", "  word"]),
        (
            "  trained      3,072 timesteps, 102 episodes, 480 updates in 1 s, 1,649 timesteps/s",
            ["  trained      3,072 timesteps, 102 episodes, 480 updates in 1 s,", "    1,649 timesteps/s"],
        ),
        (
            "    layer 2        dense, size 64, activation tanh, output 64, parameters 4,160 *",
            ["    layer 2        dense, size 64, activation tanh, output 64, parameters", "      4,160 *"],
        ),
        (
            'note: what it left is on cluster "lab"; fetch it with: steppe experiment download -e first; then go on',
            [
                'note: what it left is on cluster "lab"; fetch it with:',
                "  steppe experiment download -e first; then go on",
            ],
        ),
    ],
)
def test_sentences_are_broken_between_words_but_commands_and_paths_are_not(text: str, lines: list[str]) -> None:
    assert wrapped(text, 80).split("\n") == lines
