"""Google Kubernetes Engine, through Google's own client library."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from steppe.clusters._base import ID_LABEL, MANAGED, ObservedCluster, ProviderRequest, Record, State, Tell, wait_for
from steppe.clusters.kubeconfig import with_command
from steppe.clusters.machines import google_machine
from steppe.clusters.settings import checked_key, linked
from steppe.errors import ClusterError, MissingExtra, UserError, clause
from steppe.specs.running.cluster import ClusterSpec

ENDPOINT, ENDPOINT_VARIABLE = "https://container.googleapis.com", "STEPPE_GKE_ENDPOINT"
DEFAULT_LOCATION = "europe-west1-b"
ZONES = 3
"""The number of zones over which Google spreads the nodes of a cluster in a region."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# Enough to pull images, write results to a bucket and log. Every program in a Pod gets these rights, so no more.
NODE_SCOPES = ["devstorage.read_write", "logging.write", "monitoring"]
_STATES: dict[str, State] = {
    "PROVISIONING": "creating",
    "RUNNING": "ready",
    "RECONCILING": "ready",
    "STOPPING": "deleting",
    "ERROR": "broken",
    "DEGRADED": "broken",
}


class Gke:
    """Makes and deletes clusters in a Google cloud project."""

    name = "gke"
    is_deletable = True

    def __init__(self) -> None:
        self._opened: dict[tuple[str | None, ...], tuple[Any, Any]] = {}

    def place(self, spec: ClusterSpec) -> dict[str, str]:
        """The cloud project, the location, and the path of the service account's key."""
        link = linked(Path.cwd())
        project = spec.project or link.project
        if project is None:
            raise UserError(
                'no cloud project is given for provider "gke"; link this project to one with '
                '"steppe init -r PROJECT-ID", or set project in the cluster\'s spec'
            )
        location = spec.location or DEFAULT_LOCATION
        if _is_region(location) and spec.num_nodes % ZONES:
            raise UserError(
                f'location "{location}" is a region, over {ZONES} zones of which gke spreads the nodes evenly: '
                f"num_nodes must be a multiple of {ZONES}, or give a zone such as {location}-b"
            )
        if spec.gpus_per_node and spec.gpu_type is None:
            raise UserError("GPUs on gke need their gpu_type, such as nvidia-tesla-t4")
        google_machine(spec)
        key = {"key": str(checked_key(link.key))} if link.key else {}
        return {"project": project, "location": location, **key}

    def requests(self, record: Record) -> list[ProviderRequest]:
        """The one request that makes the cluster with its nodes."""
        url = f"{os.environ.get(ENDPOINT_VARIABLE, ENDPOINT)}/v1/{_parent(record)}/clusters"
        return [ProviderRequest(f"POST {url}", {"cluster": _cluster(record)})]

    def create(self, record: Record, tell: Tell) -> None:
        """Requests the cluster, unless that was done before, and waits until it is ready."""
        client, types = self._client(record.place)
        with _errors_as_sentences(f'make cluster "{record.name}"', record):
            if self.look(record).state == "gone":
                wanted = types.CreateClusterRequest(
                    parent=_parent(record), cluster=types.Cluster.from_json(json.dumps(_cluster(record)))
                )
                client.create_cluster(request=wanted)
                tell(f"asked {record.place['project']} for {record.spec.num_nodes} nodes in {record.place['location']}")
            wait_for(lambda: self._creation_progress(record), f'making cluster "{record.name}"', tell)

    def look(self, record: Record) -> ObservedCluster:
        """The cluster as Google describes it."""
        client, _ = self._client(record.place)
        from google.api_core.exceptions import NotFound

        with _errors_as_sentences(f'look at cluster "{record.name}"', record):
            try:
                return _observed(client.get_cluster(name=_full_name(record)), record.place)
            except NotFound:
                return ObservedCluster(record.name, "gone", place=record.place)

    def discover(self) -> list[ObservedCluster]:
        """All clusters of the linked cloud project."""
        link = linked(Path.cwd())
        if link.project is None:
            return []
        place = {"project": link.project, **({"key": link.key} if link.key else {})}
        client, _ = self._client(place)
        with _errors_as_sentences(f"list the clusters of {link.project}", None):
            answer = client.list_clusters(parent=f"projects/{link.project}/locations/-")
        return [_observed(cluster, {**place, "location": cluster.location}) for cluster in answer.clusters]

    def delete(self, record: Record, tell: Tell) -> None:
        """Requests the deletion and waits until the cluster is gone."""
        client, _ = self._client(record.place)
        with _errors_as_sentences(f'delete cluster "{record.name}"', record):
            state = self.look(record).state
            if state not in ("gone", "deleting"):
                client.delete_cluster(name=_full_name(record))
            wait_for(lambda: self._deletion_progress(record), f'deleting cluster "{record.name}"', tell)

    def kubeconfig(self, record: Record) -> dict[str, Any]:
        """Its address and certificate; a command fetches a token whenever one is needed."""
        client, _ = self._client(record.place)
        with _errors_as_sentences(f'look at cluster "{record.name}"', record):
            cluster = client.get_cluster(name=_full_name(record))
        authority = cluster.master_auth.cluster_ca_certificate
        return with_command(
            record.name, f"https://{cluster.endpoint}", authority, ["cluster", "token", "-c", record.name]
        )

    def token(self, record: Record) -> tuple[str, str | None]:
        """(a token for the cluster's API, its expiry)."""
        credentials = _credentials(record.place)
        import google.auth.transport.requests

        with _errors_as_sentences(f'open cluster "{record.name}"', record):
            credentials.refresh(google.auth.transport.requests.Request())
        return credentials.token, f"{credentials.expiry:%Y-%m-%dT%H:%M:%SZ}" if credentials.expiry else None

    def _client(self, place: dict[str, str]) -> tuple[Any, Any]:
        """(Google's client, the types of its requests), made once, since each client signs in."""
        key = (place["project"], place.get("key"))
        if key not in self._opened:
            self._opened[key] = _client(place)
        return self._opened[key]

    def _creation_progress(self, record: Record) -> str | None:
        observed = self.look(record)
        if observed.state == "ready":
            return None
        if observed.state in ("broken", "gone", "deleting"):
            raise ClusterError(
                f'Google could not make cluster "{record.name}"{f" ({observed.reason})" if observed.reason else ""}; '
                f"remove what there is of it with: steppe cluster delete -c {record.name}"
            )
        return observed.reason or "Google makes the control plane and the nodes; this takes about five minutes"

    def _deletion_progress(self, record: Record) -> str | None:
        observed = self.look(record)
        if observed.state == "gone":
            return None
        return observed.reason or "Google deletes the nodes and the control plane; this takes about five minutes"


def _cluster(record: Record) -> dict[str, Any]:
    """The cluster in the format of Google's API."""
    spec, labels = record.spec, dict([MANAGED, (ID_LABEL, record.id)])
    is_spread = _is_region(record.place["location"])
    node: dict[str, Any] = {
        "machineType": google_machine(spec),
        "diskSizeGb": spec.disk_size,
        "oauthScopes": [f"https://www.googleapis.com/auth/{scope}" for scope in NODE_SCOPES],
        "resourceLabels": labels,
        "spot": spec.spot,
        **({"accelerators": [_accelerator(spec)]} if spec.gpus_per_node else {}),
    }
    return {
        "name": record.name,
        "description": "made by Steppe",
        "resourceLabels": labels,
        **({"initialClusterVersion": spec.version} if spec.version else {}),
        "releaseChannel": {"channel": "REGULAR"},
        "ipAllocationPolicy": {"useIpAliases": True},
        "nodePools": [
            {
                "name": "nodes",
                "initialNodeCount": spec.num_nodes // ZONES if is_spread else spec.num_nodes,
                "config": node,
                "management": {"autoUpgrade": True, "autoRepair": True},
            }
        ],
    }


def _accelerator(spec: ClusterSpec) -> dict[str, Any]:
    # Counts are 64-bit integers, which are strings in the JSON of Google's API.
    shared = {
        "gpuSharingStrategy": "TIME_SHARING",
        "maxSharedClientsPerGpu": str(spec.clients_per_gpu),
    }
    return {
        "acceleratorType": spec.gpu_type,
        "acceleratorCount": str(spec.gpus_per_node),
        "gpuDriverInstallationConfig": {"gpuDriverVersion": "DEFAULT"},
        **({"gpuSharingConfig": shared} if spec.gpu_sharing else {}),
    }


def _observed(cluster: Any, place: dict[str, str]) -> ObservedCluster:
    reasons = [condition.message for condition in cluster.conditions if condition.message]
    return ObservedCluster(
        cluster.name,
        _STATES.get(cluster.status.name, "unknown"),
        id=dict(cluster.resource_labels).get(ID_LABEL, ""),
        num_nodes=cluster.current_node_count or None,
        version=cluster.current_master_version,
        place=place,
        reason="; ".join(reasons) or cluster.status_message,
    )


def _client(place: dict[str, str]) -> tuple[Any, Any]:
    """(Google's client, the types of its requests)."""
    credentials = _credentials(place)
    try:
        from google.cloud import container_v1
        from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerRestTransport
    except ImportError:
        raise MissingExtra('provider "gke"', "gke") from None
    transport = ClusterManagerRestTransport(host=_endpoint(), credentials=credentials)
    return container_v1.ClusterManagerClient(transport=transport), container_v1


def _credentials(place: dict[str, str]) -> Any:
    """The credentials of the linked key, else the default ones of this machine."""
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.oauth2 import service_account
    except ImportError:
        raise MissingExtra('provider "gke"', "gke") from None
    try:
        if "key" in place:
            return service_account.Credentials.from_service_account_file(  # type: ignore[no-untyped-call]
                checked_key(place["key"]), scopes=[SCOPE]
            )
        return google.auth.default(scopes=[SCOPE])[0]
    except (GoogleAuthError, ValueError) as error:
        raise UserError(
            f"there are no credentials for Google's cloud ({clause(error)[:300]}); link the project to a service "
            'account\'s key with "steppe init -r PROJECT-ID", or run: gcloud auth application-default login'
        ) from None


def _endpoint() -> str:
    """Google's address, or another one for tests; a token is never sent unencrypted over a network."""
    endpoint = os.environ.get(ENDPOINT_VARIABLE, ENDPOINT).rstrip("/")
    parts = urlsplit(endpoint)
    if parts.scheme == "https":
        return endpoint
    with contextlib.suppress(ValueError):
        if parts.scheme == "http" and ipaddress.ip_address(parts.hostname or "").is_loopback:
            return endpoint
    raise UserError(
        f'{ENDPOINT_VARIABLE} is "{endpoint}"; it must begin with https://, or be an http:// loopback address'
    )


@contextlib.contextmanager
def _errors_as_sentences(what: str, record: Record | None) -> Iterator[None]:
    """Turns each of Google's exceptions into one sentence."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    where = f" in {record.place['project']}" if record else ""
    try:
        yield
    except (exceptions.PermissionDenied, exceptions.Forbidden) as error:
        raise ClusterError(
            f"Google does not let these credentials {what}{where}: {_message(error)}; give their account the role "
            '"Kubernetes Engine Admin" (and "Service Account User"), and enable the Kubernetes Engine API'
        ) from None
    except exceptions.Unauthorized as error:
        raise ClusterError(f"Google does not take these credentials to {what}: {_message(error)}") from None
    except exceptions.Conflict:
        name = record.name if record else ""
        raise ClusterError(f'there is a cluster "{name}"{where} already; choose another name') from None
    except (exceptions.TooManyRequests, exceptions.ResourceExhausted) as error:
        raise ClusterError(
            f"Google's quota does not allow to {what}: {_message(error)}; take fewer or smaller nodes, another "
            "location, or ask for more quota in Google's console"
        ) from None
    except exceptions.GoogleAPICallError as error:
        raise ClusterError(f"Google could not {what}: {_message(error)}") from None
    except GoogleAuthError as error:
        raise ClusterError(f"cannot {what}: Google's sign-in failed ({clause(error)[:300]})") from None
    except (exceptions.RetryError, requests.RequestException, OSError) as error:
        raise ClusterError(f"cannot {what}: {_endpoint()} cannot be reached ({clause(error)[:300]})") from None


def _message(error: Any) -> str:
    return clause(error.message or error)[:300]


def _is_region(location: str) -> bool:
    """Whether a location is a region, such as europe-west1, and not a zone, such as europe-west1-b."""
    return re.fullmatch(r"[a-z]+-[a-z]+\d+", location) is not None


def _parent(record: Record) -> str:
    return f"projects/{record.place['project']}/locations/{record.place['location']}"


def _full_name(record: Record) -> str:
    return f"{_parent(record)}/clusters/{record.name}"
