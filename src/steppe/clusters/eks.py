"""Amazon's Elastic Kubernetes Service, through Amazon's own client library."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from steppe.clusters import eks_steps
from steppe.clusters._base import ID_LABEL, ObservedCluster, ProviderRequest, Record, State, Tell, wait_for
from steppe.clusters.eks_steps import NODES, EksStep
from steppe.clusters.kubeconfig import with_command
from steppe.clusters.machines import amazon_machine
from steppe.errors import ClusterError, MissingExtra, UserError, clause
from steppe.specs.running.cluster import ClusterSpec

ROLE_SECONDS = 120.0
"""For how long a new role may be unknown to some of Amazon's services."""
TOKEN_SECONDS = 60
ALREADY_EXISTS = ("EntityAlreadyExists", "ResourceInUseException", "InvalidLaunchTemplateName.AlreadyExistsException")
"""The error codes of Amazon's services for a name that is taken."""
MISSING = ("ResourceNotFoundException", "NoSuchEntity", "InvalidLaunchTemplateName.NotFoundException")
"""The error codes of Amazon's services for an object that does not exist."""
_STATES: dict[str, State] = {
    "CREATING": "creating",
    "PENDING": "creating",
    "ACTIVE": "ready",
    "UPDATING": "ready",
    "DELETING": "deleting",
    "FAILED": "broken",
}


class Eks:
    """Makes and deletes clusters, with their roles and nodes, in an Amazon account."""

    name = "eks"
    is_deletable = True

    def __init__(self) -> None:
        self._opened: dict[tuple[str | None, ...], Callable[[str], Any]] = {}
        # Several threads look at clusters at the same time, and Amazon's sessions are not thread-safe.
        self._lock = threading.Lock()

    def place(self, spec: ClusterSpec) -> dict[str, str]:
        """The region, the zone if one is given, and the profile with the credentials."""
        zone = re.fullmatch(r"([a-z]{2}(?:-[a-z]+)+-\d+)[a-z]", spec.location or "")
        region = zone[1] if zone else spec.location or _session({}).region_name
        if region is None:
            raise UserError(
                'no region is given for provider "eks"; give --location, such as eu-west-1, or set AWS_REGION'
            )
        if spec.gpu_sharing and not spec.gpus_per_node:
            raise UserError("gpu_sharing needs GPUs to share; give gpus_per_node too, or leave gpu_sharing out")
        amazon_machine(spec)
        profile = os.environ.get("AWS_PROFILE")
        return {
            "region": region,
            **({"zone": spec.location} if zone and spec.location else {}),
            **({"profile": profile} if profile else {}),
        }

    def requests(self, record: Record) -> list[ProviderRequest]:
        """The requests for roles, control plane, nodes and the disks' driver; with credentials it reads the subnets."""
        if _session(record.place).get_credentials() is None:
            steps = eks_steps.placeholder_steps(record)
        else:
            with _errors_as_sentences(f'plan cluster "{record.name}"'):
                steps = eks_steps.steps(record, self._clients(record.place))
        return [ProviderRequest(f"{step.service}:{step.operation}", step.parameters) for step in steps]

    def create(self, record: Record, tell: Tell) -> None:
        """Takes every step that has not been taken, and waits after each slow one."""
        client = self._clients(record.place)
        with _errors_as_sentences(f'make cluster "{record.name}"'):
            for step in eks_steps.steps(record, client):
                wait_for(
                    functools.partial(_take, client(step.service), step),
                    f"{step.operation} for cluster {record.name}",
                    tell,
                    seconds=ROLE_SECONDS,
                )
                if step.waits_for is not None:
                    progress = functools.partial(_progress, client("eks"), record.name, step.waits_for)
                    wait_for(progress, f"making {step.waits_for}", tell)

    def look(self, record: Record) -> ObservedCluster:
        """The cluster as Amazon describes it."""
        with _errors_as_sentences(f'look at cluster "{record.name}"'):
            client = self._clients(record.place)("eks")
            cluster = _unless_missing(lambda: client.describe_cluster(name=record.name)["cluster"])
            if cluster is None:
                return ObservedCluster(record.name, "gone", place=record.place)
            nodes = _unless_missing(
                lambda: client.describe_nodegroup(clusterName=record.name, nodegroupName=NODES)["nodegroup"]
            )
            count = nodes["scalingConfig"]["desiredSize"] if nodes else None
        return _observed(cluster, count, record.place)

    def discover(self) -> list[ObservedCluster]:
        """All clusters of the account in the default region of this machine."""
        try:
            session = _session({})
        except MissingExtra:
            return []
        if session.region_name is None or session.get_credentials() is None:
            return []
        place = {"region": session.region_name}
        if os.environ.get("AWS_PROFILE"):
            place["profile"] = os.environ["AWS_PROFILE"]
        with _errors_as_sentences(f"list the clusters in {session.region_name}"):
            client = self._clients(place)("eks")
            names = [name for page in client.get_paginator("list_clusters").paginate() for name in page["clusters"]]
            return [_observed(client.describe_cluster(name=name)["cluster"], None, place) for name in names]

    def delete(self, record: Record, tell: Tell) -> None:
        """Deletes the nodes, then the control plane, then their roles and launch template."""
        client = self._clients(record.place)
        eks, iam = client("eks"), client("iam")
        with _errors_as_sentences(f'delete cluster "{record.name}"'):
            is_there = self.look(record).state != "gone"
            pools = eks.list_nodegroups(clusterName=record.name)["nodegroups"] if is_there else []
            for pool in pools:
                _unless_missing(functools.partial(eks.delete_nodegroup, clusterName=record.name, nodegroupName=pool))
            for pool in pools:
                wait_for(
                    functools.partial(_node_deletion_progress, eks, record.name, pool),
                    f'deleting the nodes "{pool}"',
                    tell,
                )
            if self.look(record).state not in ("gone", "deleting"):
                _unless_missing(lambda: eks.delete_cluster(name=record.name))
            wait_for(lambda: self._deletion_progress(record), f'deleting cluster "{record.name}"', tell)
            if not record.is_owned:
                return
            for role in eks_steps.role_names(record):
                _delete_role(iam, role)
            if record.spec.gpu_sharing:
                name = eks_steps.template_name(record)
                _unless_missing(lambda: client("ec2").delete_launch_template(LaunchTemplateName=name))

    def kubeconfig(self, record: Record) -> dict[str, Any]:
        """Its address and certificate; a command makes a token whenever one is needed."""
        with _errors_as_sentences(f'look at cluster "{record.name}"'):
            cluster = self._clients(record.place)("eks").describe_cluster(name=record.name)["cluster"]
        authority = cluster["certificateAuthority"]["data"]
        return with_command(record.name, cluster["endpoint"], authority, ["cluster", "token", "-c", record.name])

    def token(self, record: Record) -> tuple[str, str | None]:
        """(a token for the cluster's API, its expiry). The token is a presigned GetCallerIdentity request."""
        import base64
        from datetime import UTC, datetime, timedelta

        with _errors_as_sentences(f'open cluster "{record.name}"'):
            session = _session(record.place)
            sts = session.client("sts")
            signer = _signer(session, sts)
            url = signer.generate_presigned_url(
                {
                    "method": "GET",
                    "url": f"{sts.meta.endpoint_url.rstrip('/')}/?Action=GetCallerIdentity&Version=2011-06-15",
                    "body": {},
                    "headers": {"x-k8s-aws-id": record.name},
                    "context": {},
                },
                region_name=record.place["region"],
                expires_in=TOKEN_SECONDS,
                operation_name="",
            )
        text = base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
        # The cluster accepts it for 15 minutes, independent of the expiry of the signature.
        until = datetime.now(UTC) + timedelta(minutes=14)
        return f"k8s-aws-v1.{text}", f"{until:%Y-%m-%dT%H:%M:%SZ}"

    def _clients(self, place: dict[str, str]) -> Callable[[str], Any]:
        """Returns Amazon's clients by service, each made once, since that takes a good part of a second."""
        key = (place.get("profile"), place.get("region"))
        if key not in self._opened:
            self._opened[key] = functools.cache(_opener(place))
        opened = self._opened[key]

        def client(service: str) -> Any:
            with self._lock:
                return opened(service)

        return client

    def _deletion_progress(self, record: Record) -> str | None:
        if self.look(record).state == "gone":
            return None
        return "Amazon deletes the control plane; this takes a few minutes"


def _take(client: Any, step: EksStep) -> str | None:
    """Takes one step, unless it was taken before; returns the reason to try again if a new role is not known yet."""
    from botocore.exceptions import ClientError

    try:
        getattr(client, step.method)(**step.parameters)
    except ClientError as error:
        code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
        if code in ALREADY_EXISTS:
            return None
        if code == "InvalidParameterException" and "role" in message.lower():
            return "Amazon makes the roles known to all its services"
        raise
    return None


def _progress(eks: Any, cluster: str, part: str) -> str | None:
    """How far a part of a cluster is; None once it is ready."""
    if part == "the control plane":
        about, took = eks.describe_cluster(name=cluster)["cluster"], "about ten minutes"
    elif part == "the nodes":
        about = eks.describe_nodegroup(clusterName=cluster, nodegroupName=NODES)["nodegroup"]
        took = "a few minutes"
    else:
        about = eks.describe_addon(clusterName=cluster, addonName=eks_steps.DISKS)["addon"]
        took = "a minute"
    if about["status"] == "ACTIVE":
        return None
    issues = "; ".join(issue["message"] for issue in about.get("health", {}).get("issues", []))
    if about["status"] in ("CREATE_FAILED", "FAILED", "DELETING", "DEGRADED"):
        raise ClusterError(
            f'Amazon could not make {part} of cluster "{cluster}"{f" ({issues})" if issues else ""}; remove what '
            f"there is of it with: steppe cluster delete -c {cluster}"
        )
    return f"Amazon makes {part}; this takes {took}{f' ({issues})' if issues else ''}"


def _observed(cluster: dict[str, Any], num_nodes: int | None, place: dict[str, str]) -> ObservedCluster:
    return ObservedCluster(
        cluster["name"],
        _STATES.get(cluster["status"], "unknown"),
        id=cluster.get("tags", {}).get(ID_LABEL, ""),
        num_nodes=num_nodes,
        version=cluster.get("version", ""),
        place=place,
    )


def _node_deletion_progress(eks: Any, cluster: str, pool: str) -> str | None:
    found = _unless_missing(lambda: eks.describe_nodegroup(clusterName=cluster, nodegroupName=pool))
    return None if found is None else f'Amazon deletes the nodes "{pool}"; this takes a few minutes'


def _delete_role(iam: Any, name: str) -> None:
    policies = _unless_missing(lambda: iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"])
    if policies is None:
        return
    for policy in policies:
        iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    _unless_missing(lambda: iam.delete_role(RoleName=name))


def _unless_missing(ask: Callable[[], Any]) -> Any:
    """The answer to a request, or None if the object does not exist."""
    from botocore.exceptions import ClientError

    try:
        return ask()
    except ClientError as error:
        if error.response["Error"]["Code"] in MISSING:
            return None
        raise


def _session(place: dict[str, str]) -> Any:
    """A session with the credentials and region of this machine, or those that a cluster was made with."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise MissingExtra('provider "eks"', "eks") from None
    try:
        return boto3.Session(profile_name=place.get("profile"), region_name=place.get("region"))
    except BotoCoreError as error:
        raise UserError(f"Amazon's credentials cannot be used: {clause(error)[:300]}") from None


def _opener(place: dict[str, str]) -> Callable[[str], Any]:
    """Makes clients that soon fail if Amazon cannot be reached; with default settings they retry for minutes."""
    session = _session(place)
    from botocore.config import Config

    config = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 3})
    return lambda service: session.client(service, config=config)


def _signer(session: Any, sts: Any) -> Any:
    from botocore.signers import RequestSigner

    return RequestSigner(
        sts.meta.service_model.service_id,
        session.region_name,
        "sts",
        "v4",
        session.get_credentials(),
        session.events,
    )


@contextlib.contextmanager
def _errors_as_sentences(what: str) -> Iterator[None]:
    """Turns each of Amazon's exceptions into one sentence."""
    try:
        from botocore import exceptions
    except ImportError:
        raise MissingExtra('provider "eks"', "eks") from None
    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.TokenRetrievalError) as error:
        raise UserError(
            f"cannot {what}: there are no credentials for Amazon's cloud ({clause(error)[:300]}); run: aws configure"
        ) from None
    except exceptions.ClientError as error:
        about = error.response["Error"]
        code, message = about.get("Code", ""), clause(about.get("Message", ""))[:300]
        action = f"{error.operation_name}: {message or code}"
        if "AccessDenied" in code or code == "UnauthorizedOperation":
            raise ClusterError(
                f"Amazon does not let these credentials {what} ({action}); allow {error.operation_name} in IAM"
            ) from None
        if code in ("UnrecognizedClientException", "InvalidClientTokenId", "ExpiredTokenException", "ExpiredToken"):
            raise ClusterError(f"Amazon does not take these credentials to {what} ({action}); sign in again") from None
        if code in ("ResourceLimitExceededException", "ServiceQuotaExceededException"):
            raise ClusterError(
                f"Amazon's quota does not allow to {what} ({action}); take fewer or smaller nodes, another location, "
                "or ask for more under Service Quotas"
            ) from None
        raise ClusterError(f"Amazon could not {what} ({action})") from None
    except (exceptions.BotoCoreError, OSError) as error:
        raise ClusterError(f"cannot {what}: Amazon cannot be reached or asked ({clause(error)[:300]})") from None
