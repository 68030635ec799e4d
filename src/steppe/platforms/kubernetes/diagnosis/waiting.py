"""Why Pods do not run, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from math import inf
from typing import Any, NamedTuple

from steppe.platforms.kubernetes.manifests.naming import KUEUE_QUEUE, ROLE

Json = dict[str, Any]
NOT_PULLED = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
MAY_COME_LATER = ("ImagePullBackOff", "ErrImagePull", "ImageInspectError")
"""Of these, what a registry that answers slowly brings about too."""
NOT_MADE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
CREW = ("server", "worker")
"""The roles of those who work for a driver."""
SURE_SECONDS = 5.0
"""For how long trouble must last before it is believed."""
PATIENT_SECONDS = 90.0
"""The same where it may pass: a registry may be slow, and a worker that died may do better when it begins anew."""


class Trouble(NamedTuple):
    """What keeps Pods from running."""

    sentence: str
    is_final: bool
    """Whether waiting will not help."""
    seconds: float = SURE_SECONDS
    """For how long it must last before it is believed."""
    may_pass: bool = False
    """Whether it passes by itself at times, so that what has trained for days had better wait."""
    is_queued: bool = False
    """Whether it is no trouble but a queue, in which one may wait for days."""


def trouble_of(
    pods: Sequence[Json], jobs: Sequence[Json], events: Sequence[Json], spare: Collection[str] = ()
) -> Trouble | None:
    """The gravest of what can be seen; None where nothing is wrong. `spare` are roles whose trouble ends nothing."""
    found = [(_role(pod), trouble) for pod in pods if (trouble := _of_pod(pod)) is not None]
    # Of a Job that has failed nobody comes back, whoever was there before.
    lasting = lasting_roles(jobs, spare)
    failed = [
        trouble._replace(is_final=_role(job) not in lasting) for job in jobs if (trouble := _of_job(job)) is not None
    ]
    found += [(_role(job), trouble) for job in jobs if (trouble := _of_queue(job)) is not None]
    for job in jobs:
        recent = [event for event in events if _still_holds(event, job, pods)]
        found += [(_role(job), trouble) for event in recent if (trouble := _of_event(event)) is not None]
    judged = failed + [
        trouble._replace(
            is_final=trouble.is_final and role not in spare,
            seconds=PATIENT_SECONDS if role in CREW else trouble.seconds,
            may_pass=trouble.may_pass or role in CREW,
        )
        for role, trouble in found
    ]
    return gravest(judged)


def gravest(troubles: Iterable[Trouble]) -> Trouble | None:
    """What is to be told of them; None where there are none."""
    return max(troubles, key=lambda trouble: (trouble.is_final, trouble.is_queued), default=None)


def lasting_roles(jobs: Sequence[Json], spare: Collection[str]) -> set[str]:
    """Of the roles that can do with fewer Pods, those of which a Job goes on: a role may have several."""
    return {_role(job) for job in jobs if end_of(job) is None} & set(spare)


def end_of(job: Json) -> Trouble | None:
    """How a Job has ended, without a sentence where that was well; None while it has not."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition.get("type") == "Complete" and condition.get("status") == "True":
            return Trouble("", is_final=True)
    return _of_job(job)


def is_ready_to_answer(pod: Json) -> bool:
    """Whether a Pod's own container runs."""
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return False
    states = pod.get("status", {}).get("containerStatuses") or []
    return any("running" in (state.get("state") or {}) for state in states if state.get("name") == _role(pod))


def running_since(pod: Json) -> float:
    """When a Pod's own container began to run, in seconds since 1970; infinity where that is not known."""
    for state in pod.get("status", {}).get("containerStatuses") or []:
        began = (state.get("state") or {}).get("running", {}).get("startedAt")
        if state.get("name") == _role(pod) and began:
            return datetime.fromisoformat(began).timestamp()
    return inf


def termination_of(pod: Json) -> Json | None:
    """How a Pod's own container ended; None while it has not."""
    for state in pod.get("status", {}).get("containerStatuses") or []:
        if state.get("name") == _role(pod) and (ended := (state.get("state") or {}).get("terminated")):
            return dict(ended)
    return None


def end_beside(pod: Json) -> str:
    """How a container beside a Pod's own has ended that was not to end, in a sentence; else nothing."""
    for state in pod.get("status", {}).get("containerStatuses") or []:
        ended = (state.get("state") or {}).get("terminated") or {}
        if state.get("name") == _role(pod) or not ended.get("exitCode"):
            continue
        if ended.get("reason") == "OOMKilled":
            return _out_of_memory(pod, state["name"])
        last = _last_line(ended.get("message", "")) or f"exit code {ended['exitCode']}"
        return f"{_called(pod, state['name'])} has ended: {last}"
    return ""


def _of_pod(pod: Json) -> Trouble | None:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for state in status.get("containerStatuses") or []:
        waiting = (state.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), _plain(waiting.get("message", ""))
        if reason in NOT_PULLED:
            return Trouble(
                f"the image {state.get('image') or _image(pod, state['name'])} of Pod {name} cannot be pulled"
                f"{f' ({message})' if message else ''}; {_way_to_image(pod, state['name'])}, or give "
                "kubernetes.image_pull_secrets",
                is_final=True,
                seconds=PATIENT_SECONDS if reason in MAY_COME_LATER else SURE_SECONDS,
                may_pass=reason in MAY_COME_LATER,
            )
        if reason in NOT_MADE:
            return Trouble(f"Pod {name} cannot be started: {message or reason}", is_final=True)
        ended = (state.get("state") or {}).get("terminated") or (state.get("lastState") or {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            return Trouble(_out_of_memory(pod, state["name"]), is_final=True)
        if reason == "CrashLoopBackOff":
            last = _last_line(ended.get("message", "")) or f"exit code {ended.get('exitCode')}"
            return Trouble(f"Pod {name} fails again and again: {last}", is_final=False)
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = _plain(condition.get("message", "") or "none has room")
            if "PersistentVolumeClaim" in message or "volume" in message:
                return Trouble(
                    f"Pod {name} waits for its disk: {message}; if it stays so, name a storage class that the cluster "
                    "has (kubernetes.storage_class)",
                    is_final=False,
                )
            return Trouble(
                f"Pod {name} waits for a node: {message}; it asks for "
                f"{_requests(pod)}; ask for less (kubernetes.{_role(pod)}), or add nodes",
                is_final=False,
            )
    if status.get("reason") == "UnexpectedAdmissionError":
        return Trouble(f"Pod {name} was turned away by its node: {_plain(status.get('message', ''))}", is_final=False)
    if status.get("reason") == "Evicted":
        return Trouble(f"Pod {name} was evicted: {_plain(status.get('message', ''))}", is_final=False)
    return None


def _of_job(job: Json) -> Trouble | None:
    for condition in job.get("status", {}).get("conditions") or []:
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            reason = _plain(condition.get("message", "") or condition.get("reason", ""))
            return Trouble(f"Job {job['metadata']['name']} has failed: {reason}", is_final=True)
    return None


def _of_queue(job: Json) -> Trouble | None:
    if not job.get("spec", {}).get("suspend") or end_of(job) is not None:
        return None
    queue = job["metadata"].get("labels", {}).get(KUEUE_QUEUE)
    where = f'for its turn in queue "{queue}"' if queue else "until it is not suspended any more"
    return Trouble(f"Job {job['metadata']['name']} waits {where}", is_final=False, is_queued=True)


def _of_event(event: Json) -> Trouble | None:
    message = str(event.get("message", ""))
    if event.get("reason") != "FailedCreate":
        return None
    if "exceeded quota" in message:
        detail = _plain(message[message.index("exceeded quota") :])
        sentence = f"the namespace has no room for a Pod: {detail}; ask for less, or for more quota"
        return Trouble(sentence, is_final=True, may_pass=True)
    if "forbidden" in message or "invalid" in message.lower():
        return Trouble(f"a Pod may not be made: {_plain(message.removeprefix('Error creating: '))}", is_final=True)
    return None


def _still_holds(event: Json, job: Json, pods: Sequence[Json]) -> bool:
    """Whether a Job has fewer Pods than it should have, and has got none since that happened to it."""
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
    asked = pod["spec"]["containers"][0].get("resources", {}).get("requests", {})
    return ", ".join(f"{value} {name}" for name, value in asked.items()) or "nothing"


def _limit(pod: Json, container: str) -> str:
    found = [each for each in pod["spec"]["containers"] if each["name"] == container]
    return str(found[0].get("resources", {}).get("limits", {}).get("memory", "")) if found else ""


def _sidecar(pod: Json, container: str) -> str | None:
    """The field that describes a container of the user's own; None for the Pod's own."""
    others = [each["name"] for each in pod["spec"]["containers"] if each["name"] != _role(pod)]
    return f"kubernetes.sidecars[{others.index(container)}]" if container in others else None


def _called(pod: Json, container: str) -> str:
    name = f"Pod {pod['metadata']['name']}"
    return name if _sidecar(pod, container) is None else f'the container "{container}" beside {name}\'s own'


def _out_of_memory(pod: Json, container: str) -> str:
    limit, sidecar, role = _limit(pod, container), _sidecar(pod, container), _role(pod)
    if sidecar is not None:
        way_out = f"; give it more by resources.limits.memory in {sidecar}"
    else:
        # Others, such as readers, have what they have.
        way_out = f"; give it more by kubernetes.{role}.memory" if role in ("driver", *CREW) else ""
    return f"{_called(pod, container)} ran out of memory{f' (its limit is {limit})' if limit else ''}{way_out}"


def _way_to_image(pod: Json, container: str) -> str:
    if (sidecar := _sidecar(pod, container)) is not None:
        return f"push it, name another one in {sidecar}.image"
    return 'build and push it with "steppe image build" and "steppe image push", name another one in kubernetes.image'


def _image(pod: Json, container: str) -> str:
    return next((str(each["image"]) for each in pod["spec"]["containers"] if each["name"] == container), "?")


def _role(thing: Json) -> str:
    return str(thing["metadata"].get("labels", {}).get(ROLE, ""))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip().removeprefix("error: ") if lines else ""


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
