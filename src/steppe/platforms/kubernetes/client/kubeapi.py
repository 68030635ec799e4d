"""The Kubernetes API: the only module that uses kr8s. Every failure becomes a KubeError with one sentence.

Objects are plain dictionaries, as in their manifests.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from steppe.errors import ClusterError, MissingExtra, clause
from steppe.platforms.kubernetes.manifests.naming import selector

Json = dict[str, Any]
ANSWER_SECONDS = 30.0
"""How long one answer of the API server may take."""
CONNECT_SECONDS = 10.0
GONE_SECONDS = 120.0
"""How long a deleted object may take to disappear."""
TRIES = 3
"""How often a request that may be repeated is sent."""
FORBIDDEN = (401, 403)
"""The HTTP codes for missing permission, which waiting does not cure."""
ROLE_PAGE = 'docs/kubernetes.md lists the role that Steppe needs, and "steppe cluster check" what is missing'

API_PATHS = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Pod": ("/api/v1", "pods"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "Job": ("/apis/batch/v1", "jobs"),
    "RayJob": ("/apis/ray.io/v1", "rayjobs"),
}
"""Kind -> (path of its API, plural name there)."""


class KubeError(ClusterError):
    """The API server refused a request or could not be reached; `code` is its HTTP status, 0 without an answer."""

    def __init__(self, sentence: str, code: int = 0) -> None:
        super().__init__(sentence)
        self.code = code


class _SinkFailed(Exception):
    """The receiver of a body could not take it."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class KubeAnswer(NamedTuple):
    """An answer of the API server or of a Pod behind it."""

    code: int
    body: bytes


class Kube:
    """One namespace of one cluster; connects at the first request and closes with the context."""

    def __init__(self, kubeconfig: str | Path | Json, context: str | None, namespace: str, name: str = "") -> None:
        """`name` is the user's name for the cluster."""
        self.namespace, self.name = namespace, name or context or "cluster"
        self._kubeconfig, self._context = kubeconfig, context
        self._stack = contextlib.ExitStack()
        self._portal: Any = None
        self._api: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; may be called again."""
        if self._api is not None:
            with contextlib.suppress(Exception):
                self._portal.call(self._end)
        self._stack.close()
        self._api = self._portal = None

    def get(self, kind: str, name: str) -> Json | None:
        """The object of that name, or None."""
        try:
            return self._request("GET", kind, name)
        except KubeError as error:
            if error.code == 404:
                return None
            raise

    def listed(
        self, kind: str, labels: Mapping[str, str] | None = None, fields: str = "", limit: int = 0
    ) -> list[Json]:
        """The objects of a kind with these labels, at most `limit` of them if given."""
        query = {"labelSelector": selector(dict(labels or {})), "fieldSelector": fields, "limit": str(limit or "")}
        found: list[Json] = self._request("GET", kind, query=query).get("items") or []
        return found

    def create(self, manifest: Json) -> Json:
        """Creates an object; KubeError 409 if its name is taken."""
        return self._request("POST", manifest["kind"], body=manifest, must_not_repeat=True)

    def create_or_keep(self, manifest: Json) -> Json:
        """Creates an object unless its name is taken, and returns the one that exists then."""
        try:
            return self.create(manifest)
        except KubeError as error:
            if error.code != 409:
                raise
            return self._request("GET", manifest["kind"], manifest["metadata"]["name"])

    def patch(self, kind: str, name: str, changes: Json) -> Json:
        """Changes parts of an object by a merge patch."""
        return self._request("PATCH", kind, name, body=changes)

    def delete(self, kind: str, name: str) -> None:
        """Deletes an object if it exists and, soon after, the objects that it owns."""
        try:
            self._request("DELETE", kind, name, body={"propagationPolicy": "Background"})
        except KubeError as error:
            if error.code != 404:
                raise

    def wait_until_gone(self, kind: str, labels: Mapping[str, str], seconds: float = GONE_SECONDS) -> list[str]:
        """Waits until no object of a kind has these labels; returns the names of those still there after `seconds`."""
        deadline, pause = time.monotonic() + seconds, 0.1
        # One object is enough to continue; an empty page may be followed by others, so it is checked by listing all.
        while left := self.listed(kind, labels, limit=1) or self.listed(kind, labels):
            if time.monotonic() > deadline:
                return [each["metadata"]["name"] for each in left]
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        return []

    def ask_pod(
        self,
        pod: str,
        port: int,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: Json | None = None,
        sink: Callable[[bytes], None] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> KubeAnswer:
        """The answer of a Pod at an HTTP port, through the API server; with `sink` the body goes there in blocks.

        KubeError if the API server refuses the request itself, for example because there is no such Pod.
        """
        place = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{port}/proxy{path}"
        content = None if body is None else json.dumps(body).encode()
        answer = self._send(method, place, dict(headers or {}), content, sink, seconds)
        if answer.code >= 400 and _is_servers_own(answer.body):
            raise self.refused(answer, f"{method} pods/proxy")
        return answer

    def ask(self, method: str, place: str, body: Json | None = None) -> KubeAnswer:
        """Sends any request by its path; returns the answer, errors included."""
        content = None if body is None else json.dumps(body).encode()
        return self._send(method, place, {"Content-Type": "application/json"}, content)

    def _request(
        self,
        method: str,
        kind: str,
        name: str = "",
        *,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
        must_not_repeat: bool = False,
    ) -> Json:
        base, plural = API_PATHS[kind]
        place = f"{base}/namespaces/{self.namespace}/{plural}" + (f"/{quote(name)}" if name else "")
        given = {key: value for key, value in (query or {}).items() if value}
        if given:
            place += "?" + "&".join(f"{key}={quote(value)}" for key, value in given.items())
        patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": patch}
        for attempt in range(TRIES):
            try:
                answer = self._send(method, place, headers, content)
            except KubeError:
                if must_not_repeat or attempt == TRIES - 1:
                    raise
                time.sleep(0.5 * 2**attempt)
                continue
            # With 429 and 503 the server says that it is busy and has done nothing.
            if answer.code not in (429, 503) or attempt == TRIES - 1:
                break
            time.sleep(0.5 * 2**attempt)
        if answer.code >= 400:
            raise self.refused(answer, f"{method} {plural}")
        data: Json = json.loads(answer.body)
        return data

    def _send(
        self,
        method: str,
        place: str,
        headers: dict[str, str],
        content: bytes | None,
        sink: Callable[[bytes], None] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> KubeAnswer:
        self._open()
        try:
            return self._portal.call(self._exchange, method, place, headers, content, sink, seconds)  # type: ignore[no-any-return]
        except KubeError:
            raise
        except _SinkFailed as error:
            # A full disk on this machine is not the cluster's fault.
            raise error.reason from None
        except Exception as error:
            raise self._unreachable(error) from error

    async def _exchange(
        self,
        method: str,
        place: str,
        headers: dict[str, str],
        content: bytes | None,
        sink: Callable[[bytes], None] | None,
        seconds: float,
    ) -> KubeAnswer:
        import httpx

        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        for is_last in (False, True):
            request = {"headers": headers, "content": content, "timeout": timeout, "raise_for_status": False}
            async with self._api.call_api(
                method, version="", base=place.rpartition("/")[0], url=place.rpartition("/")[2], stream=True, **request
            ) as response:
                if response.status_code == 401 and not is_last:
                    body = await response.aread()
                    if "/proxy/" in place and not _is_servers_own(body):
                        return KubeAnswer(response.status_code, body)
                    # Credentials may have expired; kr8s fetches new ones from their source.
                elif sink is None or response.is_error:
                    return KubeAnswer(response.status_code, await response.aread())
                else:
                    async for block in response.aiter_bytes():
                        try:
                            sink(block)
                        except OSError as error:
                            raise _SinkFailed(error) from error
                    return KubeAnswer(response.status_code, b"")
            await self._api.auth.reauthenticate()
            await self._api._create_session()
        raise AssertionError

    def _open(self) -> None:
        if self._api is not None:
            return
        try:
            import anyio
            import kr8s.asyncio
            from anyio.from_thread import start_blocking_portal
        except ImportError as error:
            raise MissingExtra("a Kubernetes cluster", "cluster") from error

        async def connect() -> Any:
            with warnings.catch_warnings(), anyio.fail_after(ANSWER_SECONDS):
                # kr8s warns about versions it was not tested with; the API that Steppe uses is the same in all of them.
                warnings.simplefilter("ignore")
                return await kr8s.asyncio.api(
                    kubeconfig=self._kubeconfig,  # type: ignore[arg-type]
                    context=self._context,
                    namespace=self.namespace,
                )

        self._portal = self._stack.enter_context(start_blocking_portal())
        try:
            self._api = self._portal.call(connect)
        except Exception as error:
            raise self._unreachable(error) from error
        self._stack.callback(_forget_files, self._api)

    async def _end(self) -> None:
        if self._api._session is not None:
            await self._api._session.aclose()

    def _unreachable(self, error: Exception) -> KubeError:
        root: BaseException = error
        while (cause := root.__cause__ or root.__context__) is not None:
            root = cause
        server = self._api.auth.server if self._api is not None else ""
        where = f" at {server}" if server else ""
        reason = clause(root)
        if "imeout" in type(error).__name__ or "imeout" in type(root).__name__:
            reason = "no answer"
        return KubeError(
            f'the cluster "{self.name}" cannot be reached{where} ({reason}); see that it runs, that this machine may '
            f"connect to it, and that its kubeconfig and context are right: {self._kubectl()}"
        )

    def _kubectl(self) -> str:
        """A command that asks the same server without Steppe."""
        file = ["--kubeconfig", str(self._kubeconfig)] if self._kubeconfig is not None else []
        context = ["--context", self._context] if self._context is not None else []
        return shlex.join(["kubectl", *file, *context, "version"])

    def refused(self, answer: KubeAnswer, what: str) -> KubeError:
        """The KubeError for an answer with an error code to the request `what`."""
        try:
            status = json.loads(answer.body)
            message = str(status.get("message") or status.get("error") or "")
        except (ValueError, AttributeError):
            message = answer.body.decode(errors="replace").strip()[:300]
        return KubeError(refusal(self.name, self.namespace, answer.code, message or what), answer.code)


def refusal(cluster: str, namespace: str, code: int, message: str) -> str:
    """The sentence about a request that the API server refused with `message`."""
    forbidden = re.search(
        r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"'
        r'(?: in API group "(?P<group>[^"]*)")?',
        message,
    )
    if forbidden:
        group = f" ({forbidden['group']})" if forbidden["group"] else ""
        return (
            f'"{forbidden["user"]}" may not {forbidden["verb"]} {forbidden["resource"]}{group} in namespace '
            f'"{namespace}" of cluster "{cluster}"; {ROLE_PAGE}'
        )
    if "exceeded quota" in message:
        detail = message[message.index("exceeded quota") :]
        where = f'namespace "{namespace}" of cluster "{cluster}"'
        return f"{where} has no room: {clause(detail)}; ask for less, or for more quota"
    if code == 401:
        return f'the cluster "{cluster}" does not accept the credentials in its kubeconfig; log in to it again'
    if f'namespaces "{namespace}" not found' in message:
        return (
            f'cluster "{cluster}" has no namespace "{namespace}"; make it (kubectl create namespace {namespace}), or '
            "name another one in the cluster's spec"
        )
    return f'the cluster "{cluster}" refuses: {clause(message)}'


def _is_servers_own(body: bytes) -> bool:
    """Whether an error comes from the API server itself, and not from a Pod behind it."""
    try:
        status = json.loads(body)
    except ValueError:
        return False
    return isinstance(status, dict) and status.get("kind") == "Status"


def _forget_files(api: Any) -> None:
    """Deletes the temporary files into which kr8s writes the keys of a kubeconfig, and which it leaves behind."""
    import tempfile

    for name in ("client_key_file", "client_cert_file", "server_ca_file"):
        path = getattr(api.auth, name, None)
        if path is not None and Path(str(path)).parent == Path(tempfile.gettempdir()):
            with contextlib.suppress(OSError):
                Path(str(path)).unlink()
