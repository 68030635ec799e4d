"""Fields of an experiment that its run mode ignores, for notices."""

from __future__ import annotations

from collections.abc import Iterable

from steppe.specs._base import Spec
from steppe.specs.experiment import ExperimentSpec

_ONE_WORKER = 'has no effect in run mode "single", which has one worker'
_FIELDS = {
    "single": {"num_workers": _ONE_WORKER, "num_parameter_servers": _ONE_WORKER},
    "multi-threaded": {
        "num_parameter_servers": 'has no effect in run mode "multi-threaded", whose threads share one model'
    },
}
_SECTIONS = {"distributed": ("distributed",), "asynchronous": ("async",), "ray": ("distributed", "async")}
"""Section of an experiment -> the run modes that use it."""


def ignored_fields(spec: ExperimentSpec) -> list[str]:
    """A notice for each field or section that differs from its default and that this run mode ignores."""
    fields = _FIELDS.get(spec.run_mode, {})
    sentences = [f"{name} {fields[name]}" for name in _changed(spec, fields)]
    for section, modes in _SECTIONS.items():
        part: Spec = getattr(spec, section)
        names = [f"{section}.{name}" for name in _changed(part, type(part).model_fields)]
        if names and spec.run_mode not in modes:
            theirs = " and ".join(f'"{mode}"' for mode in modes)
            sentences.append(
                f"{', '.join(names)} {'have' if names[1:] else 'has'} no effect in run mode "
                f'"{spec.run_mode}", only in {theirs}'
            )
    return sentences


def _changed(part: Spec, names: Iterable[str]) -> list[str]:
    """The names of fields whose value is not the default."""
    return [name for name in names if getattr(part, name) != type(part).model_fields[name].default]
