"""Typer commands that refuse a repeated option if it takes one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from steppe.cli.input import completion
from steppe.errors import UserError

UNCUT = 1000
EXPERIMENT_ARGUMENT = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="The experiment's name, or the path of its run folder.",
        show_default=False,
        autocompletion=completion.experiments,
    ),
]
EXPERIMENT_OPTION = Annotated[
    str | None,
    typer.Option(
        "-e", "--experiment", metavar="NAME", help="The same, as an option.", autocompletion=completion.experiments
    ),
]


class _InFull:
    """Shows the whole first sentence in the list of commands, which Typer would cut."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first sentence of the help."""
        return str(super().get_short_help_str(UNCUT))  # type: ignore[misc]


class Command(_InFull, TyperCommand):
    """A command of Steppe."""

    def make_parser(self, ctx: Any) -> Any:
        """Typer's parser, which also counts how often each option was given."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            try:
                values, rest, order = parse(args=args)
            except Exception as error:
                # The parser leaves the context out of some errors, and it names the command whose help explains them.
                if getattr(error, "ctx", ctx) is None:
                    error.ctx = ctx  # type: ignore[attr-defined]
                raise
            if not ctx.resilient_parsing:
                _check_given_once(order)
            return values, rest, order

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser


class CommandGroup(_InFull, TyperGroup):
    """A group of commands."""


class SteppeApp(typer.Typer):
    """A Typer app with Steppe's commands and groups."""

    def __init__(self, *, cls: type[TyperGroup] = CommandGroup, **options: Any) -> None:
        super().__init__(cls=cls, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:  # type: ignore[override]
        """Registers a command."""
        return super().command(name, **{"cls": Command, **options})


def experiment_name(name: str | None, option: str | None, example: str) -> str:
    """The experiment named by a command's argument or by -e."""
    if name is not None and option is not None and name != option:
        raise UserError(f'two experiments are named, "{name}" and "{option}"; leave one out')
    chosen = name if name is not None else option
    if chosen is None:
        raise UserError(f'no experiment is named; try: {example} ("steppe experiment list" shows those there are)')
    return chosen


def _check_given_once(order: list[Any]) -> None:
    """Refuses two values for one option: one of them would be ignored. A flag may be repeated."""
    for parameter in order:
        takes_one = parameter.param_type_name == "option" and not parameter.multiple and not parameter.is_flag
        if takes_one and order.count(parameter) > 1:
            raise UserError(f"{max(parameter.opts, key=len)} is given more than once; give it one value")
