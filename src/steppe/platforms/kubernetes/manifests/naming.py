"""The names, labels and annotations of an experiment's objects."""

from __future__ import annotations

import hashlib
import re

LONGEST_SLUG = 30
"""Keeps names, with the suffixes that Jobs add for their Pods, within the 63 characters of a host name."""
DIGEST = 8
LONGEST_LABEL = 63

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "steppe"
RUN, EXPERIMENT, PROJECT, ROLE = "steppe/run", "steppe/experiment", "steppe/project", "steppe/role"
START = "steppe/start"
"""Label of Jobs and Pods: the start of the experiment that they belong to."""
STATUS, ORIGIN = "steppe/status", "steppe/origin"
"""Annotations of the root: the last status noted by a client, and from where the experiment was started."""
ENGINE = "steppe/engine"
"""Annotation of the root: the engine that makes the experiment's Pods."""
FILES = "files"
"""The role of ConfigMaps with the large files that an experiment names."""
CARRIED = "steppe/carried"
"""Annotation of the root: the names of these ConfigMaps, separated by spaces."""
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"


def run_name(project: str, experiment: str) -> str:
    """The beginning of all names of an experiment's objects: readable, valid, and unique to the experiment."""
    slug = re.sub(r"[^a-z0-9]+", "-", experiment.lower()).strip("-")[:LONGEST_SLUG].strip("-")
    digest = hashlib.sha256(f"{project}\0{experiment}".encode()).hexdigest()[:DIGEST]
    return "-".join(part for part in (MANAGER, slug, digest) if part)


def labels_of(project: str, experiment: str) -> dict[str, str]:
    """The labels of every object of an experiment."""
    return {
        MANAGED_BY: MANAGER,
        RUN: run_name(project, experiment),
        EXPERIMENT: label_value(experiment),
        PROJECT: label_value(project),
    }


def label_value(text: str) -> str:
    """The nearest valid value of a label; the label steppe/run distinguishes names that become equal."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:LONGEST_LABEL].strip("._-")


def selector(labels: dict[str, str]) -> str:
    """The label selector for a query."""
    return ",".join(f"{name}={value}" for name, value in labels.items())
