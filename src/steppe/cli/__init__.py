"""The command line. `main` is its edge: the one place where errors become text and an exit code."""

from __future__ import annotations

import gc
import os
import re
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]

PROGRAMS = ("steppe", "tfcli")
BOUNDS = {
    "Input should be greater than or equal to": "it must be at least",
    "Input should be less than or equal to": "it must be at most",
    "Input should be greater than": "it must be more than",
    "Input should be less than": "it must be less than",
}
"""Typer's phrase for a number out of bounds -> Steppe's phrase."""
UNBROKEN = 10_000
"""A terminal width at which no line is wrapped."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    _look_for_garbage_later()
    if any(f"_{program.upper()}_COMPLETE" in os.environ for program in PROGRAMS):
        # Typer wraps descriptions of commands at the terminal's width, and fish takes each line for a command.
        os.environ["COLUMNS"] = str(UNBROKEN)
    from steppe.cli.app import app_for

    words, debug = _without_debug(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        # As in tfcli, `help` is a command: `steppe help experiment start`.
        words = [*words[1:], "--help"]
    program = Path(sys.argv[0]).name
    try:
        result = app_for(words)(words, prog_name=program if program in PROGRAMS else PROGRAMS[0], standalone_mode=False)
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        return _tell(error)
    return result if isinstance(result, int) else 0


def _look_for_garbage_later() -> None:
    """Puts off garbage collection: start-up makes many lasting objects, and collections took a tenth of its time."""
    gc.set_threshold(500_000, 20, 50)
    if _as_usual not in gc.callbacks:
        gc.callbacks.append(_as_usual)


def _as_usual(phase: str, info: dict[str, int]) -> None:
    """Makes collections more frequent after the first one."""
    gc.set_threshold(100_000, 20, 50)


def _without_debug(words: list[str]) -> tuple[list[str], bool]:
    """Removes --debug wherever it stands, so that it can be appended to a command that failed."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    debug = len(kept) < end or os.environ.get("STEPPE_DEBUG", "0") not in ("", "0")
    return kept + words[end:], debug


def _tell(error: Exception) -> int:
    from steppe.errors import SteppeError

    if isinstance(error, SteppeError):
        return _say(str(error), error.exit_code)
    # Typer's own errors, recognised by name and attributes, since Typer has both used and absorbed Click.
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]
        return 2
    if hasattr(error, "format_message"):
        return _say(_usage(error), getattr(error, "exit_code", 2))
    if type(error).__name__ == "Abort":
        return _say("nothing was done: no answer was given", 1)
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _say(f"something unexpected went wrong ({reason}); run it again with --debug to see where", 1)


def _say(sentence: str, exit_code: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return exit_code


def _instead(word: str, context: Any) -> str:
    """A suggestion for an unknown command: one of the same group, or a top-level one of that name."""
    from steppe.cli.app import COMMANDS, GROUPS
    from steppe.specs.loading.suggestions import did_you_mean

    # The context's app has only the command that was called.
    if context.parent is not None and word in {*COMMANDS, *GROUPS}:
        return f'; did you mean "{PROGRAMS[0]} {word}"?'
    return did_you_mean(word, getattr(context.command, "commands", ()))


def _usage(error: Exception) -> str:
    """Typer's error in Steppe's wording, with the help command to run."""
    from steppe.specs.loading.suggestions import did_you_mean

    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context is not None else PROGRAMS[0]
    words = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    for theirs, ours in BOUNDS.items():
        words = words.replace(theirs, ours)
    unknown = re.match(r"No such command '(.*?)'", words)
    if unknown is not None:
        sentence = f'unknown command "{unknown[1]}"{_instead(unknown[1], context)}'
    elif type(error).__name__ == "NoSuchOption":
        option = error.option_name  # type: ignore[attr-defined]
        options = [name for parameter in context.command.params for name in parameter.opts] if context else []
        sentence = f'unknown option "{option}"{did_you_mean(option, options)}'
    elif extra := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", words):
        sentence = f'unexpected argument "{extra[1]}"'
    else:
        sentence = words[:1].lower() + words[1:].replace(". ", "; ")
    return f'{sentence} ("{command} --help" lists what there is)'
