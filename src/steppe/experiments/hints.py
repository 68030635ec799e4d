"""The advice in errors: commands in the terminal, calls in Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ways:
    """The text of each operation on one experiment, as a command or a call."""

    start: str
    restart: str
    start_on: Callable[[str], str]
    """How to start it on a cluster of that name."""
    resume: str
    resume_with: Callable[[str, Any], str]
    """(field, value) -> how to train on with another value of a field."""
    stop: str
    show: str
    logs: str
    download: str
    serve: str
    replace: str
    """How to replace an existing experiment of that name."""


def commands(reference: str) -> Ways:
    """Commands for the terminal; `reference` names the experiment after -e."""

    def command(verb: str) -> str:
        return f"steppe experiment {verb} -e {reference}"

    return Ways(
        start=command("start"),
        restart=f"{command('start')} --force",
        start_on=lambda cluster: f"{command('start')} -c {cluster}",
        resume=command("resume"),
        resume_with=lambda field, value: f"{command('resume')} --set {field}={json.dumps(value)}",
        stop=command("stop"),
        show=command("show"),
        logs=command("logs"),
        download=command("download"),
        serve=f"steppe serve -e {reference}",
        replace="choose another name with -n, or use --force",
    )


CALLS = Ways(
    start="experiment.start()",
    restart="experiment.start(force=True)",
    start_on=lambda cluster: f"experiment.start(cluster={cluster!r})",
    resume="experiment.start(resume=True)",
    resume_with=lambda field, value: f"experiment.start(resume=True, {field}={value!r})",
    stop="experiment.stop()",
    show="experiment.status",
    logs='experiment.folder / "log.txt"',
    download="experiment.download(folder)",
    serve="load_endpoint(experiment.folder)",
    replace="choose another name or folder, or give force=True",
)
"""Calls in Python."""
