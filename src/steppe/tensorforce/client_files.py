"""Experiments as the old tfcli wrote them, with its own notes among the fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steppe.tensorforce.translation import Translation

_MARK = "k8s_config"
"""A field that is in every experiment.json of the old tfcli, and in nothing else."""
_ITS_OWN = {"file", "path", "k8s_config", "name_hyphenated", "has_dedicated_cluster", "status", "running_json_file"}
_ITS_CLUSTERS_OWN = {"num_gpus", "status", "primary_name"}


def is_old(data: Any) -> bool:
    """Whether the old tfcli wrote this experiment.json."""
    return isinstance(data, Mapping) and _MARK in data


def translate_client_file(data: dict[str, Any]) -> Translation:
    """The experiment without the old tfcli's notes; a notice reports a frequency that its own runner refused."""
    data = {name: value for name, value in data.items() if name not in _ITS_OWN}
    if isinstance(cluster := data.get("cluster"), dict):
        data["cluster"] = {name: value for name, value in cluster.items() if name not in _ITS_CLUSTERS_OWN}
    frequency, notices = data.get("summary_frequency"), []
    if isinstance(frequency, str) and frequency.endswith("e"):
        del data["summary_frequency"]
        notices.append(
            f'summary_frequency "{frequency}" has no effect: metrics are written by seconds or timesteps ("5000t")'
        )
    return Translation(data, tuple(notices))
