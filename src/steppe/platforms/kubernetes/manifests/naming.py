"""What the objects of an experiment are called, and how they are found again."""

from __future__ import annotations

import hashlib
import re

LONGEST_SLUG = 30
"""With the parts around it, and what Jobs add for their Pods, a name stays within the 63 characters of a host name."""
DIGEST = 8
LONGEST_LABEL = 63

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "steppe"
RUN, EXPERIMENT, PROJECT, ROLE = "steppe/run", "steppe/experiment", "steppe/project", "steppe/role"
START = "steppe/start"
"""Which start of the experiment a Job and its Pods belong to."""
STATUS, ORIGIN = "steppe/status", "steppe/origin"
"""Annotations of the root: the last status that was seen, and from where the experiment was started."""
ENGINE = "steppe/engine"
"""Annotation of the root: what makes the experiment's Pods."""
FILES = "files"
"""The role of ConfigMaps with large files that the experiment names."""
CARRIED = "steppe/carried"
"""Annotation of the root: their names, a space between."""
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"


def run_name(project: str, experiment: str) -> str:
    """What all names of an experiment's objects begin with: readable, valid, and never that of another experiment."""
    slug = re.sub(r"[^a-z0-9]+", "-", experiment.lower()).strip("-")[:LONGEST_SLUG].strip("-")
    digest = hashlib.sha256(f"{project}\0{experiment}".encode()).hexdigest()[:DIGEST]
    return "-".join(part for part in (MANAGER, slug, digest) if part)


def labels_of(project: str, experiment: str) -> dict[str, str]:
    """What every object of an experiment is labelled with."""
    return {
        MANAGED_BY: MANAGER,
        RUN: run_name(project, experiment),
        EXPERIMENT: label_value(experiment),
        PROJECT: label_value(project),
    }


def label_value(text: str) -> str:
    """The nearest text that a label may hold; names that it blurs are told apart by the label steppe/run."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:LONGEST_LABEL].strip("._-")


def selector(labels: dict[str, str]) -> str:
    """As the API takes it in a query."""
    return ",".join(f"{name}={value}" for name, value in labels.items())
