"""The status of a run, from the health of its Pods."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from steppe.experiments.run_folder.store import Status

if TYPE_CHECKING:
    from steppe.platforms.kubernetes.diagnosis.pod_health import PodHealth

PODS_GONE = "its Pods are gone; somebody has deleted them"


def status_seen(sight: PodHealth, known: Status) -> Status:
    """The status of a run from the health of its Pods and its last `known` status."""
    seen = Status.from_data(sight.status) if sight.status else None
    if sight.is_alive:
        if seen is None or not seen.is_live or not sight.is_heard:
            # Also while another Pod takes over: no driver can be asked, and nothing is lost if the run is ended.
            base = seen if seen is not None and sight.is_heard else _newer(seen, known)
            return dataclasses.replace(
                base, state="starting", reason="", finished=None, phase=sight.phase or "starting", created=known.created
            )
        return dataclasses.replace(seen, phase=sight.phase or seen.phase, created=known.created)
    # Without a status its driver never reported anything.
    seen = known if seen is None else dataclasses.replace(seen, created=known.created)
    if seen.is_live or (sight.trouble and seen.state != "failed"):
        reason = sight.trouble or PODS_GONE
        return dataclasses.replace(seen, state="failed", reason=reason, finished=time.time(), phase="")
    return seen


def _newer(seen: Status | None, known: Status) -> Status:
    """The newer of the status kept on the cluster, which may be the end of an earlier start, and the one noted here."""
    if seen is None or (seen.finished is not None and seen.finished < (known.created or 0.0)):
        # It ended before the run was started anew.
        return known
    return max(seen, known, key=lambda each: (each.heartbeat or 0.0, each.timestep))
