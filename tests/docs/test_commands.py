"""docs/commands.md lists every command and every flag of the command line, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from steppe.cli.app import app_for
from steppe.cli.input.flags import FLAGS

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
SHARED = "Flags of an experiment"


def commands(command: Any, words: tuple[str, ...] = ("steppe",)) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner:
        yield " ".join(words), command
    for name, child in inner.items():
        yield from commands(child, (*words, name))


COMMANDS = dict(commands(typer.main.get_command(app_for([]))))


def sections() -> dict[str, str]:
    _, *rest = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(rest[::2], rest[1::2], strict=True))


def documented_flags(text: str) -> set[str]:
    rows = re.findall(r"^\| (`-.*?) \|", text, flags=re.MULTILINE)
    return {flag for row in rows for flag in re.findall(r"`(--?[a-zA-Z][a-z-]*)", row)}


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(sections()) - {SHARED} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_section_lists_exactly_the_flags_of_its_command(name: str) -> None:
    flags = {option for parameter in COMMANDS[name].params for option in parameter.opts if option.startswith("-")}
    flags -= {"--help", "-h"}
    text = sections()[name]
    takes_shared = f"#{SHARED.lower().replace(' ', '-')}" in text
    documented = documented_flags(text) | (documented_flags(sections()[SHARED]) if takes_shared else set())
    assert documented == flags


def test_the_shared_section_lists_the_flags_of_train_and_new() -> None:
    flags = documented_flags(sections()[SHARED])
    assert {f"--{name.replace('_', '-')}" for name in FLAGS} | {"--set"} <= flags
