"""What may change between a run and its resumption, and what a change does to a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import UserError
from steppe.experiments.hints import CALLS
from steppe.experiments.run_folder.store import SPEC_FILE, RunFolder

if TYPE_CHECKING:
    from steppe.specs.experiment import ExperimentSpec

CHANGEABLE = (
    "total_timesteps",
    "episodes",
    "stop_at_return",
    "evaluation",
    "final_evaluation",
    "saver_frequency",
    "summary_frequency",
    "debug_logging",
    "video",
    "description",
    "group",
    "platform",
    "ray",
    "cluster",
    "kubernetes",
)
"""The fields that may change between a run and its resumption: how long, where and what is written, never what is
learned."""
CHANGEABLE_IN = {
    "async": (
        "num_workers",
        "asynchronous.queue_size",
        "asynchronous.patience",
        "asynchronous.evaluation_share",
        "asynchronous.worker_timeout",
        "asynchronous.reconnect",
        "asynchronous.address",
        "asynchronous.token_file",
        "asynchronous.tls_cert",
        "asynchronous.tls_key",
    ),
    "distributed": (
        "num_workers",
        "num_parameter_servers",
        "distributed.max_staleness",
        "distributed.worker_timeout",
    ),
}
"""Run mode -> what may change there beside these: how many work, where they meet, how long who waits for whom."""


def changed(
    folder: RunFolder, before: ExperimentSpec, fields: dict[str, Any], sets: list[str], resume: bool
) -> ExperimentSpec:
    """The experiment with other fields; a UserError for what cannot change."""
    from steppe.spec_files import load_experiment
    from steppe.specs.loading.overrides import parse_override

    changeable = _changeable(before)
    touchable = {name.partition(".")[0] for name in changeable}
    for field in [*fields, *(str(parse_override(text)[0][0]) for text in sets)]:
        if field == "name":
            raise UserError("the name of an experiment cannot change; make another experiment")
        if resume and field in type(before).model_fields and field not in touchable:
            raise _fixed(field, changeable)
    # Among fields None means "not given", so what is to be nothing from now on is set.
    nothing = [f"{field}=null" for field, value in fields.items() if value is None]
    options = folder.ways is not CALLS
    spec = load_experiment(folder.path / SPEC_FILE, fields, [*nothing, *sets], Path.cwd(), options=options)
    for part in sorted(touchable - set(changeable)) if resume else ():
        was, now = getattr(before, part), getattr(spec, part)
        for name in type(was).model_fields:
            if f"{part}.{name}" not in changeable and getattr(was, name) != getattr(now, name):
                raise _fixed(f"{part}.{name}", changeable)
    return spec


def _changeable(spec: ExperimentSpec) -> tuple[str, ...]:
    more = CHANGEABLE_IN.get(spec.run_mode, ())
    if spec.run_mode == "distributed" and spec.distributed.synchronous:
        # All workers make one batch: with another number of them it, and how many updates there are, would differ.
        more = tuple(name for name in more if name != "num_workers")
    return CHANGEABLE + more


def moved_decay(folder: RunFolder, before: ExperimentSpec, spec: ExperimentSpec) -> list[str]:
    """A learning rate that falls to zero at total_timesteps falls otherwise when they change: worth a word."""
    from steppe.records.checkpoints import list_checkpoints

    old, new = before.limits[1], spec.limits[1]
    if old == new or old is None or new is None:
        return []
    from steppe.agents import agent_class

    settings = spec.agent.settings_as(agent_class(spec.agent).Settings)
    if getattr(settings, "learning_rate_decay", "none") != "linear":
        return []
    timestep = list_checkpoints(folder.path)[-1]
    was, now = (settings.learning_rate * max(0.0, 1.0 - timestep / total) for total in (old, new))
    return [
        f"learning_rate_decay is linear, so the new total_timesteps moves it: from timestep {timestep:,} on the "
        f"learning rate is {now:.3g} instead of {was:.3g}, and it reaches zero at timestep {new:,}"
    ]


def _fixed(field: str, changeable: tuple[str, ...]) -> UserError:
    return UserError(
        f"{field} cannot change when an experiment is resumed; {', '.join(changeable)} can, or make another experiment"
    )
