"""A cluster's spec from a file and from flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steppe.spec_files import read_cluster
from steppe.specs.loading.files import find_config, read_spec_file, shown_path
from steppe.specs.loading.overrides import parse_override, put
from steppe.specs.loading.validation import Origins, join_path
from steppe.specs.running.cluster import ClusterSpec


def load(file: str | Path | None, fields: dict[str, Any], sets: list[str], start: Path) -> ClusterSpec:
    """The cluster in `file`, overridden by `fields` that are not None, then by each `path=value` of `sets`."""
    data: Any = {}
    origins = Origins()
    if file is not None:
        path = find_config(file, "cluster", start)
        data, origins = read_spec_file(path), Origins(shown_path(path))
        if not isinstance(data, dict):
            return read_cluster(data, origins)
    given = {key: value for key, value in fields.items() if value is not None}
    if "machine_type" in given:
        data = {key: value for key, value in data.items() if key not in ("cpus_per_node", "memory_per_node")}
    if "cpus_per_node" in given or "memory_per_node" in given:
        data.pop("machine_type", None)
    for key, value in given.items():
        data[key] = value
        origins = origins.with_part((key,), f"--{key.replace('_', '-')}", "")
    for text in sets:
        steps, value = parse_override(text)
        written = put(data, steps, value, text)
        origins = origins.with_part(written, "--set", join_path("", written))
    return read_cluster(data, origins)
