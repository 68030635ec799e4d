"""`steppe record`: episodes of a good policy, for agents that learn from demonstrations."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steppe.cli.input.flags import ALLOW_MODULES, QUIET, STOCHASTIC, WHERE_IT_PLAYS
from steppe.cli.input.parsing import EXPERIMENT_ARGUMENT, EXPERIMENT_OPTION, experiment_name

if TYPE_CHECKING:
    from steppe.policies.policy import Policy
    from steppe.runners.play.recording import RecordingProgress, RecordingRequest
    from steppe.specs.experiment import ExperimentSpec


def record(
    name: EXPERIMENT_ARGUMENT = None,
    experiment: EXPERIMENT_OPTION = None,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="PATH", help="A policy folder that plays instead.")
    ] = None,
    environment: WHERE_IT_PLAYS = None,
    episodes: Annotated[int, typer.Option("--episodes", metavar="N", min=1, help="How many episodes are kept.")] = 10,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")] = Path(
        "demonstrations.safetensors"
    ),
    seed: Annotated[
        int, typer.Option("--seed", metavar="S", min=0, help="What all randomness of the episodes follows from.")
    ] = 0,
    stochastic: STOCHASTIC = False,
    min_return: Annotated[
        float | None, typer.Option("--min-return", metavar="R", help="Keep only episodes with at least this return.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
    allow_modules: ALLOW_MODULES = None,
    quiet: QUIET = False,
) -> int:
    """Record episodes of a policy, for agents that learn from demonstrations.

    For example: steppe record first --out good.safetensors --min-return 475
    """
    from steppe.errors import UserError
    from steppe.experiments.players import find_player
    from steppe.runners.play.recording import RecordingRequest
    from steppe.runners.play.recording import record as play
    from steppe.specs.allowed_modules import AllowedModules, named_in
    from steppe.specs.loading.files import shown_path

    # Naming a module in -E allows it.
    allowed = AllowedModules.of(allow_modules or ()) | named_in(environment)
    if name is not None or experiment is not None:
        experiment = experiment_name(name, experiment, "steppe record first")
    if (experiment is None) == (policy is None):
        raise UserError("give one policy to record: an experiment's NAME or --policy FOLDER")
    player, spec = find_player(experiment, policy, environment, allowed)
    if out.is_dir():
        raise UserError(f"{out} is a folder; give --out a file, such as {out / 'demonstrations.safetensors'}")
    if out.suffix not in ("", ".safetensors"):
        raise UserError(f"demonstrations are safetensors; call the file --out {out.with_suffix('.safetensors')}")
    if out.exists() and not force:
        raise UserError(f"{out} exists already; choose another --out, or use --force to write over it")
    wish = RecordingRequest(episodes, seed, not stochastic, min_return)
    try:
        demonstrations, recorded = play(player, spec, wish, _Progress(wish, quiet))
    except KeyboardInterrupt:
        print("error: recording was ended by Ctrl-C; nothing was written", file=sys.stderr)
        return 130
    path = demonstrations.save(out)
    if not quiet:
        _print_end(recorded, wish, shown_path(path), spec, player)
    return 0


class _Progress:
    """Prints progress at growing intervals."""

    def __init__(self, wish: RecordingRequest, quiet: bool) -> None:
        from steppe.display.console import console
        from steppe.display.live import LinePace

        self._wish, self._quiet = wish, quiet
        self._console = console()
        self._pace = LinePace()

    def __call__(self, recorded: RecordingProgress) -> None:
        """Called after each episode."""
        if self._quiet or not self._pace.is_due():
            return
        from steppe.display.text import score

        kept = f"{recorded.kept} of {self._wish.episodes} episodes"
        played = f" (of {recorded.played} played)" if recorded.played > recorded.kept else ""
        self._console.print(f"{kept}{played}, mean return {score(recorded.mean_return)}", markup=False)


def _print_end(
    recorded: RecordingProgress, wish: RecordingRequest, path: str, spec: ExperimentSpec, player: Policy
) -> None:
    from steppe.cli.starting.running import say
    from steppe.display.console import console
    from steppe.display.text import score
    from steppe.specs.spaces import Box

    out = console()
    plural = "" if recorded.kept == 1 else "s"
    sentence = (
        f"recorded {recorded.kept} episode{plural} ({recorded.timesteps:,} timesteps) with mean return "
        f"{score(recorded.mean_return)} in {path}"
    )
    if recorded.kept < wish.episodes:
        had = f"only {recorded.kept} of {recorded.played} episodes had a return of at least {wish.min_return:g}"
        say([f"{had}; {wish.episodes} were asked for"])
    if isinstance(player.description.action, Box):
        out.print(sentence, markup=False)
        return
    out.print(f"{sentence}; learn from them with:", markup=False)
    environment = shlex.quote(spec.environment.id)
    out.print(f"  steppe train {environment} --agent dqfd --set agent.demonstrations={shlex.quote(path)}", markup=False)
