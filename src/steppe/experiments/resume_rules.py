"""The fields that may change when a run is resumed, and notices of the effects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.errors import UserError
from steppe.experiments.hints import CALLS
from steppe.experiments.run_folder.store import RunFolder
from steppe.files.run_files import SPEC_FILE

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
"""The fields that may change when a run is resumed: its limits, location and output; never the learning."""
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
"""Run mode -> the fields that may change there too: numbers of workers, addresses, timeouts."""


def changed(
    folder: RunFolder, before: ExperimentSpec, fields: dict[str, Any], sets: list[str], resume: bool
) -> ExperimentSpec:
    """The experiment with changed fields; a UserError if a field cannot change."""
    from steppe.spec_files import load_experiment
    from steppe.specs.loading.overrides import parse_override

    changeable = _changeable(before)
    touchable = {name.partition(".")[0] for name in changeable}
    for field in [*fields, *(str(parse_override(text)[0][0]) for text in sets)]:
        if field == "name":
            raise UserError("the name of an experiment cannot change; make another experiment")
        if resume and field in type(before).model_fields and field not in touchable:
            raise _fixed(field, changeable)
    # load_experiment reads None as "not given", so a field is set to null by an override.
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
        # All workers together make one batch, so their number decides its size and the number of updates.
        more = tuple(name for name in more if name != "num_workers")
    return CHANGEABLE + more


def moved_decay(before: ExperimentSpec, spec: ExperimentSpec, timestep: int | None) -> list[str]:
    """A notice if a new total_timesteps changes a learning rate that decays until then."""
    old, new = before.limits[1], spec.limits[1]
    if old == new or old is None or new is None or timestep is None:
        return []
    from steppe.agents import agent_class
    from steppe.specs.learning.learning_rate import decayed_rate

    settings = spec.agent.settings_as(agent_class(spec.agent).Settings)
    decay = getattr(settings, "learning_rate_decay", "none")
    if decay == "none":
        return []
    start, end = settings.learning_rate, settings.final_learning_rate
    was, now = (decayed_rate(decay, start, end, min(timestep / total, 1.0)) for total in (old, new))
    return [
        f"learning_rate_decay is {decay}, so the new total_timesteps moves it: from timestep {timestep:,} on the "
        f"learning rate is {now:.3g} instead of {was:.3g}, and it reaches {f'{end:.3g}' if end else 'zero'} at "
        f"timestep {new:,}"
    ]


def _fixed(field: str, changeable: tuple[str, ...]) -> UserError:
    return UserError(
        f"{field} cannot change when an experiment is resumed; {', '.join(changeable)} can, or make another experiment"
    )
