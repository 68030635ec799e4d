"""The health of Pods: why they do not run, in sentences, from what the API server and KubeRay say about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from typing import Any

from steppe.errors import clause
from steppe.platforms.kubernetes.manifests.naming import KUEUE_QUEUE, ROLE

Json = dict[str, Any]
NOT_PULLED = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
MAY_BE_PULLED_LATER = ("ImagePullBackOff", "ErrImagePull", "ImageInspectError")
"""The reasons among them that a slow registry causes too."""
NOT_CREATED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
POOL_ROLES = ("server", "worker")
"""The roles of the Pods that work for a driver."""
SURE_SECONDS = 5.0
"""For how long a problem must last before it counts."""
PATIENT_SECONDS = 90.0
"""The same for problems that may pass: a slow registry, or a worker that dies and may do better after a restart."""
NO_DASHBOARD = "Cannot include dashboard"
"""Ray's error if it is installed without its dashboard."""


@dataclass(frozen=True)
class PodHealth:
    """Whether Pods run, what they wait for, and why they never will; of a whole run also its own status."""

    status: Json | None = None
    """The run's own status, as last reported; None before the first report."""
    is_alive: bool = True
    """Whether the cluster works on it or waits to do so."""
    phase: str = ""
    """What it waits for; empty if it waits for nothing."""
    trouble: str = ""
    """Why waiting will not help; of a run that is not alive, why it has failed."""
    seconds: float = SURE_SECONDS
    """For how long `trouble` must last before it counts."""
    may_pass: bool = False
    """Whether `trouble` sometimes passes by itself, so that a run that has trained for days should wait."""
    is_queued: bool = False
    """Whether it waits in a queue, possibly for days."""
    is_heard: bool = True
    """Whether a driver reports this itself; otherwise its Pod is starting or being replaced."""
    is_silent: bool = False
    """Whether a driver runs and has not answered this time, which healthy drivers sometimes do not."""


HEALTHY = PodHealth()


def hopeless(sentence: str, **fields: Any) -> PodHealth:
    """The health of Pods with a problem that waiting does not solve."""
    return PodHealth(phase=sentence, trouble=sentence, **fields)


def health_of(
    pods: Sequence[Json], jobs: Sequence[Json], events: Sequence[Json], expendable: Collection[str] = ()
) -> PodHealth:
    """The worst problem of Pods and their Jobs; HEALTHY if there is none.

    Problems of Pods whose role is in `expendable` do not end a run.
    """
    found = [(_role(pod), _health_of_pod(pod)) for pod in pods]
    found += [(_role(job), _health_in_queue(job)) for job in jobs]
    for job in jobs:
        found += [(_role(job), _health_by_event(event)) for event in events if _still_holds(event, job, pods)]
    judged = [
        replace(
            health,
            trouble="" if role in expendable else health.trouble,
            seconds=PATIENT_SECONDS if role in POOL_ROLES else health.seconds,
            may_pass=health.may_pass or role in POOL_ROLES,
        )
        for role, health in found
        if health.phase
    ]
    # The Pods of a failed Job are not replaced, so a role stays expendable only if another Job of it continues.
    lasting = roles_that_last(jobs, expendable)
    failed = [(job, ending) for job in jobs if (ending := ending_of(job))]
    return worst(
        [PodHealth(phase=ending) if _role(job) in lasting else hopeless(ending) for job, ending in failed] + judged
    )


def worst(healths: Iterable[PodHealth]) -> PodHealth:
    """The one to report: hopeless before queued before the rest; HEALTHY if there are none."""
    return max(healths, key=lambda health: (bool(health.trouble), health.is_queued), default=HEALTHY)


def roles_that_last(jobs: Sequence[Json], expendable: Collection[str]) -> set[str]:
    """The expendable roles of which at least one Job has not ended; a role may have several."""
    return {_role(job) for job in jobs if ending_of(job) is None} & set(expendable)


def ending_of(job: Json) -> str | None:
    """Why a Job has failed, empty if it has completed; None while it has not ended."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition.get("status") != "True":
            continue
        if condition.get("type") == "Complete":
            return ""
        if condition.get("type") == "Failed":
            reason = clause(condition.get("message", "") or condition.get("reason", ""))
            return f"Job {job['metadata']['name']} has failed: {reason}"
    return None


def ray_job_health(job: Json) -> PodHealth:
    """The health of a RayJob, from its status."""
    status = job.get("status") or {}
    phase, message = status.get("jobDeploymentStatus", ""), clause(status.get("message", ""))[:500]
    name = job["metadata"]["name"]
    match phase:
        case "Complete" | "Failed" | "ValidationFailed":
            why = message or clause(status.get("reason", "")) or f"its state is {status.get('jobStatus') or phase}"
            sentence = f"RayJob {name} has ended: {why}"
            # Success includes a driver that has paused or stopped as asked.
            has_succeeded = status.get("jobStatus") == "SUCCEEDED"
            return PodHealth(is_alive=False, phase=sentence, trouble="" if has_succeeded else sentence)
        case "":
            return PodHealth(phase=f"RayJob {name} waits for the KubeRay operator to take it up")
        case "Suspended" | "Suspending":
            return PodHealth(phase=f"RayJob {name} waits for its turn, as its queue says", is_queued=True)
        case "Retrying":
            return PodHealth(phase=f"RayJob {name} has failed, and KubeRay makes its Pods anew")
    for condition in (status.get("rayClusterStatus") or {}).get("conditions") or []:
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            sentence = f"KubeRay cannot make a Pod: {clause(condition.get('message', ''))[:500]}"
            return hopeless(sentence, may_pass=True) if "exceeded quota" in sentence else PodHealth(phase=sentence)
    return HEALTHY


def is_running(pod: Json) -> bool:
    """Whether a Pod's own container runs."""
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return False
    return "running" in _own_state(pod)


def running_since(pod: Json) -> float:
    """When a Pod's own container started, in seconds since 1970; infinity if that is not known."""
    started = _own_state(pod).get("running", {}).get("startedAt")
    return datetime.fromisoformat(started).timestamp() if started else inf


def termination_of(pod: Json) -> Json | None:
    """How a Pod's own container ended; None while it has not."""
    return _own_state(pod).get("terminated") or None


def sidecar_failure(pod: Json) -> str:
    """How a container beside a Pod's own has failed; empty if none has."""
    for state in _container_statuses(pod):
        ended = (state.get("state") or {}).get("terminated") or {}
        if state.get("name") == _role(pod) or not ended.get("exitCode"):
            continue
        if ended.get("reason") == "OOMKilled":
            return _out_of_memory(pod, state["name"])
        last = _last_line(ended.get("message", "")) or f"exit code {ended['exitCode']}"
        return f"{_container_name(pod, state['name'])} has ended: {last}"
    return ""


def _container_statuses(pod: Json) -> list[Json]:
    return pod.get("status", {}).get("containerStatuses") or []


def _own_state(pod: Json) -> Json:
    """The state of the container that is named after the Pod's role."""
    states = [state.get("state") or {} for state in _container_statuses(pod) if state.get("name") == _role(pod)]
    return states[0] if states else {}


def _health_of_pod(pod: Json) -> PodHealth:
    for state in _container_statuses(pod):
        if (health := _health_of_container(pod, state)).phase:
            return health
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = clause(condition.get("message", "") or "none has room")
            if "PersistentVolumeClaim" in message or "volume" in message:
                return PodHealth(
                    phase=f"Pod {name} waits for its disk: {message}; if it stays so, name a storage class that the "
                    "cluster has (kubernetes.storage_class)"
                )
            return PodHealth(
                phase=f"Pod {name} waits for a node: {message}; it asks for "
                f"{_requests(pod)}; ask for less (kubernetes.{_role(pod)}), or add nodes"
            )
    if status.get("reason") == "UnexpectedAdmissionError":
        return PodHealth(phase=f"Pod {name} was turned away by its node: {clause(status.get('message', ''))}")
    if status.get("reason") == "Evicted":
        return PodHealth(phase=f"Pod {name} was evicted: {clause(status.get('message', ''))}")
    return HEALTHY


def _health_of_container(pod: Json, state: Json) -> PodHealth:
    name, waiting = pod["metadata"]["name"], (state.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), clause(waiting.get("message", ""))
    if reason in NOT_PULLED:
        may_pass = reason in MAY_BE_PULLED_LATER
        return hopeless(
            f"the image {state.get('image') or _image(pod, state['name'])} of Pod {name} cannot be pulled"
            f"{f' ({message})' if message else ''}; {_way_to_image(pod, state['name'])}, or give "
            "kubernetes.image_pull_secrets",
            seconds=PATIENT_SECONDS if may_pass else SURE_SECONDS,
            may_pass=may_pass,
        )
    if reason in NOT_CREATED:
        return hopeless(f"Pod {name} cannot be started: {message or reason}")
    ended = (state.get("state") or {}).get("terminated") or (state.get("lastState") or {}).get("terminated") or {}
    if ended.get("reason") == "OOMKilled":
        return hopeless(_out_of_memory(pod, state["name"]))
    if reason == "CrashLoopBackOff":
        last = _last_line(ended.get("message", "")) or f"exit code {ended.get('exitCode')}"
        return PodHealth(phase=f"Pod {name} fails again and again: {last}")
    return HEALTHY


def _health_in_queue(job: Json) -> PodHealth:
    if not job.get("spec", {}).get("suspend") or ending_of(job) is not None:
        return HEALTHY
    queue = job["metadata"].get("labels", {}).get(KUEUE_QUEUE)
    what = f'for its turn in queue "{queue}"' if queue else "until it is not suspended any more"
    return PodHealth(phase=f"Job {job['metadata']['name']} waits {what}", is_queued=True)


def _health_by_event(event: Json) -> PodHealth:
    message = str(event.get("message", ""))
    if event.get("reason") != "FailedCreate":
        return HEALTHY
    if "exceeded quota" in message:
        detail = clause(message[message.index("exceeded quota") :])
        sentence = f"the namespace has no room for a Pod: {detail}; ask for less, or for more quota"
        return hopeless(sentence, may_pass=True)
    if "forbidden" in message or "invalid" in message.lower():
        return hopeless(f"a Pod may not be made: {clause(message.removeprefix('Error creating: '))}")
    return HEALTHY


def _still_holds(event: Json, job: Json, pods: Sequence[Json]) -> bool:
    """Whether a Job still lacks Pods and has got none since the event."""
    uid, status = job["metadata"].get("uid"), job.get("status", {})
    wanted = job.get("spec", {}).get("parallelism", 1)
    if (event.get("involvedObject") or {}).get("uid") != uid or status.get("succeeded"):
        return False
    own = [pod["metadata"] for pod in pods if uid in _owners(pod)]
    happened = str(event.get("lastTimestamp") or event.get("eventTime") or "")
    is_past = any(str(pod.get("creationTimestamp", "")) > happened for pod in own)
    return not own or (status.get("active", 0) < wanted and not is_past)


def _owners(pod: Json) -> list[str]:
    return [owner.get("uid", "") for owner in pod["metadata"].get("ownerReferences") or ()]


def _requests(pod: Json) -> str:
    requests = pod["spec"]["containers"][0].get("resources", {}).get("requests", {})
    return ", ".join(f"{value} {name}" for name, value in requests.items()) or "nothing"


def _container(pod: Json, name: str) -> Json:
    return next((each for each in pod["spec"]["containers"] if each["name"] == name), {})


def _image(pod: Json, container: str) -> str:
    return str(_container(pod, container).get("image", "?"))


def _sidecar_field(pod: Json, container: str) -> str | None:
    """The field that describes a container of the user's own; None for the Pod's own."""
    others = [each["name"] for each in pod["spec"]["containers"] if each["name"] != _role(pod)]
    return f"kubernetes.sidecars[{others.index(container)}]" if container in others else None


def _container_name(pod: Json, container: str) -> str:
    name = f"Pod {pod['metadata']['name']}"
    return name if _sidecar_field(pod, container) is None else f'the container "{container}" beside {name}\'s own'


def _out_of_memory(pod: Json, container: str) -> str:
    limit = _container(pod, container).get("resources", {}).get("limits", {}).get("memory", "")
    field, role = _sidecar_field(pod, container), _role(pod)
    if field is not None:
        way_out = f"; give it more by resources.limits.memory in {field}"
    else:
        # The memory of other Pods, such as readers, is fixed.
        way_out = f"; give it more by kubernetes.{role}.memory" if role in ("driver", *POOL_ROLES) else ""
    return f"{_container_name(pod, container)} ran out of memory{f' (its limit is {limit})' if limit else ''}{way_out}"


def _way_to_image(pod: Json, container: str) -> str:
    if (field := _sidecar_field(pod, container)) is not None:
        return f"push it, name another one in {field}.image"
    return 'build and push it with "steppe image build" and "steppe image push", name another one in kubernetes.image'


def _role(thing: Json) -> str:
    return str(thing["metadata"].get("labels", {}).get(ROLE, ""))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip().removeprefix("error: ") if lines else ""
