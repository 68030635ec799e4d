"""`steppe evaluate`: the returns of a policy over whole episodes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from steppe.cli.input import completion
from steppe.cli.input.flags import ALLOW_MODULES, STOCHASTIC, WHERE_IT_PLAYS
from steppe.cli.input.parsing import EXPERIMENT_OPTION

if TYPE_CHECKING:
    from steppe.experiments.players import Which
    from steppe.records.evaluation import Evaluation
    from steppe.runners.play.episodes import PlayedEpisode


def evaluate(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The experiment: its name, or its run folder; or a policy folder.",
            autocompletion=completion.experiments,
        ),
    ] = None,
    experiment: EXPERIMENT_OPTION = None,
    episodes: Annotated[
        int, typer.Option("--episodes", metavar="N", help="How many episodes are played, each to its end.")
    ] = 100,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="S", help="What all randomness follows from; no training has these episodes."),
    ] = 0,
    stochastic: STOCHASTIC = False,
    best: Annotated[
        bool, typer.Option("--best", help="The policy that scored best on the way, instead of the one in policy/.")
    ] = False,
    last: Annotated[
        bool, typer.Option("--last", help="The policy at the end of the training, instead of the one in policy/.")
    ] = False,
    environment: WHERE_IT_PLAYS = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every return and length.")] = False,
    allow_modules: ALLOW_MODULES = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show no progress.")] = False,
) -> int:
    """Play episodes with a policy and print its returns.

    For example: steppe evaluate first --episodes 100
    """
    from steppe.errors import UserError
    from steppe.experiments.players import find_player, is_policy
    from steppe.runners.play.evaluation import evaluate as play
    from steppe.specs.allowed_modules import AllowedModules, named_in

    if (subject is None) == (experiment is None):
        raise UserError(
            "give one policy to evaluate: the name of an experiment, or a policy folder"
            if subject is None
            else f'two experiments are given, "{subject}" and "{experiment}"; leave one out'
        )
    word = experiment if subject is None else subject
    assert word is not None
    # Naming a module in -E allows it.
    allowed = AllowedModules.of(allow_modules or ()) | named_in(environment)
    if best and last:
        raise UserError("--best and --last are two policies; leave one out")
    which: Which | None = "best" if best else "last" if last else None
    if experiment is None and is_policy(word):
        if which is not None:
            raise UserError(f"{word} is one policy; leave out --{which}, or give the experiment")
        player, spec = find_player(None, word, environment, allowed)
    else:
        player, spec = find_player(word, None, environment, allowed, which)
    try:
        with _progress(episodes, quiet or as_json) as show:
            found = play(player, spec, episodes=episodes, seed=seed, greedy=not stochastic, show=show)
    except KeyboardInterrupt:
        print("error: the evaluation was ended by Ctrl-C", file=sys.stderr)
        return 130
    if as_json:
        from steppe.display.console import print_json

        print_json(found.to_json())
    else:
        _print(found, word)
    return 0


@contextlib.contextmanager
def _progress(episodes: int, is_quiet: bool) -> Iterator[Callable[[list[PlayedEpisode]], None]]:
    """Yields a callback that shows the progress at growing intervals."""
    from steppe.display.live import LinePace
    from steppe.display.progress_lines import telling
    from steppe.display.text import score

    pace = LinePace()
    with telling(is_quiet=is_quiet) as tell:

        def show(done: list[PlayedEpisode]) -> None:
            if pace.is_due():
                mean = sum(episode.score for episode in done) / len(done)
                tell(f"{len(done):,} of {episodes:,} episodes, mean return {score(mean)}")

        yield show


def _print(found: Evaluation, word: str) -> None:
    from steppe.display.console import console
    from steppe.display.text import score

    out = console()
    many = f"{found.episodes:,} episode{'' if found.episodes == 1 else 's'}"
    how = "the best action taken" if found.greedy else "actions drawn"
    out.print(f"{word}: {many} of {found.environment}, {how}, seed {found.seed}", markup=False, style="bold")
    low, high = found.interval
    for label, text in (
        ("policy", f"of timestep {found.timestep:,}"),
        ("mean return", f"{score(found.mean)} (95% interval {score(low)} to {score(high)})"),
        ("deviation", score(found.deviation)),
        ("IQM", score(found.iqm)),
        ("min, max", f"{score(found.min)}, {score(found.max)}"),
        ("mean length", score(found.mean_length)),
    ):
        out.print(f"  {label:<12} {text}", markup=False)
