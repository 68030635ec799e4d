"""The Kubernetes API: the only place that knows kr8s. Whatever goes wrong becomes one sentence.

Objects go in and come out as plain dictionaries, as their manifests are written.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from steppe.errors import ClusterError, MissingExtra
from steppe.platforms.kubernetes.manifests.naming import selector

Json = dict[str, Any]
ANSWER_SECONDS = 30.0
"""How long one answer of the API server may take."""
CONNECT_SECONDS = 10.0
GONE_SECONDS = 120.0
"""How long a deleted object may take to be gone."""
TRIES = 3
"""How often something is asked that did no harm when it failed."""
ROLE_PAGE = 'docs/kubernetes.md lists the role that Steppe needs, and "steppe cluster check" what is missing'

PLACES = {
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
"""Kind -> (where its API is, what it is called there)."""


class KubeError(ClusterError):
    """The API server refused something, or could not be reached; `code` is its HTTP status, 0 where there is none."""

    def __init__(self, sentence: str, code: int = 0, reason: str = "") -> None:
        super().__init__(sentence)
        self.code, self.reason = code, reason


class _NotTaken(Exception):
    """Whoever was to take in what came could not."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Answer(NamedTuple):
    """What came back from a Pod."""

    code: int
    body: bytes


class Kube:
    """One namespace of one cluster; opened at the first question, closed with the context."""

    def __init__(self, kubeconfig: str | Path | Json, context: str | None, namespace: str, name: str = "") -> None:
        """`name` is what the user calls the cluster."""
        self.namespace, self.name = namespace, name or context or "cluster"
        self._kubeconfig, self._context = kubeconfig, context
        self._stack = contextlib.ExitStack()
        self._portal: Any = None
        self._api: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; may be called again."""
        if self._api is not None:
            with contextlib.suppress(Exception):
                self._portal.call(self._end)
        self._stack.close()
        self._api = self._portal = None

    def get(self, kind: str, name: str) -> Json | None:
        """An object, or None where there is none of that name."""
        try:
            return self._asked("GET", kind, name)
        except KubeError as error:
            if error.code == 404:
                return None
            raise

    def listed(
        self, kind: str, labels: Mapping[str, str] | None = None, fields: str = "", limit: int = 0
    ) -> list[Json]:
        """The objects of a kind with these labels: all of them, or so many."""
        query = {"labelSelector": selector(dict(labels or {})), "fieldSelector": fields, "limit": str(limit or "")}
        found: list[Json] = self._asked("GET", kind, query=query).get("items") or []
        return found

    def create(self, manifest: Json) -> Json:
        """Makes an object; KubeError 409 where there is one of that name."""
        return self._asked("POST", manifest["kind"], body=manifest, must_not_repeat=True)

    def create_or_keep(self, manifest: Json) -> Json:
        """The object of that name, made now where there was none."""
        try:
            return self.create(manifest)
        except KubeError as error:
            if error.code != 409:
                raise
            return self._asked("GET", manifest["kind"], manifest["metadata"]["name"])

    def patch(self, kind: str, name: str, changes: Json) -> Json:
        """Changes parts of an object."""
        return self._asked("PATCH", kind, name, body=changes)

    def delete(self, kind: str, name: str) -> None:
        """Deletes an object and, soon after, what belongs to it; one that is not there is fine."""
        with _missing_is_fine():
            self._asked("DELETE", kind, name, body={"propagationPolicy": "Background"})

    def wait_until_gone(self, kind: str, labels: Mapping[str, str], seconds: float = GONE_SECONDS) -> list[str]:
        """Waits until nothing of a kind has these labels; the name of one that is still there in the end."""
        deadline, pause = time.monotonic() + seconds, 0.1
        # One is enough to go on waiting; where there seems to be none, all are asked for: a page may be empty.
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
    ) -> Answer:
        """What a Pod answers at an HTTP port, through the API server; with `sink` its body goes there bit by bit.

        KubeError where the API server answers itself, for one because there is no such Pod.
        """
        place = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{port}/proxy{path}"
        content = None if body is None else json.dumps(body).encode()
        answer = self._sent(method, place, dict(headers or {}), content, sink, seconds)
        if answer.code >= 400 and _is_servers_own(answer.body):
            raise self.refused(answer, f"{method} pods/proxy")
        return answer

    def ask(self, method: str, place: str, body: Json | None = None) -> Answer:
        """Any question by its path, and the answer, whatever it says."""
        content = None if body is None else json.dumps(body).encode()
        return self._sent(method, place, {"Content-Type": "application/json"}, content)

    def has_api(self, group_version: str) -> bool:
        """Whether the cluster knows an API, such as ray.io/v1."""
        return self._sent("GET", f"/apis/{group_version}", {}, None).code == 200

    def _asked(
        self,
        method: str,
        kind: str,
        name: str = "",
        *,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
        must_not_repeat: bool = False,
    ) -> Json:
        base, plural = PLACES[kind]
        place = f"{base}/namespaces/{self.namespace}/{plural}" + (f"/{quote(name)}" if name else "")
        given = {key: value for key, value in (query or {}).items() if value}
        if given:
            place += "?" + "&".join(f"{key}={quote(value)}" for key, value in given.items())
        patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": patch}
        for attempt in range(TRIES):
            try:
                answer = self._sent(method, place, headers, content)
            except KubeError:
                if must_not_repeat or attempt == TRIES - 1:
                    raise
                time.sleep(0.5 * 2**attempt)
                continue
            # 429 and 503 say that the server is busy, and have done nothing.
            if answer.code not in (429, 503) or attempt == TRIES - 1:
                break
            time.sleep(0.5 * 2**attempt)
        if answer.code >= 400:
            raise self.refused(answer, f"{method} {plural}")
        data: Json = json.loads(answer.body)
        return data

    def _sent(
        self,
        method: str,
        place: str,
        headers: dict[str, str],
        content: bytes | None,
        sink: Callable[[bytes], None] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """One question and its answer, whatever that says."""
        self._open()
        try:
            return self._portal.call(self._exchange, method, place, headers, content, sink, seconds)  # type: ignore[no-any-return]
        except KubeError:
            raise
        except _NotTaken as error:
            # A full disk here is not the cluster's fault.
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
    ) -> Answer:
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
                        return Answer(response.status_code, body)
                    # Credentials may have expired; kr8s fetches others from where it has them.
                elif sink is None or response.is_error:
                    return Answer(response.status_code, await response.aread())
                else:
                    async for block in response.aiter_bytes():
                        try:
                            sink(block)
                        except OSError as error:
                            raise _NotTaken(error) from error
                    return Answer(response.status_code, b"")
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
                # It warns of versions that it was not tested with; what Steppe asks is the same in all of them.
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
        reason = _plain(str(root) or type(error).__name__)
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

    def refused(self, answer: Answer, what: str) -> KubeError:
        """The error for an answer that is one; `what` was asked."""
        try:
            status = json.loads(answer.body)
            message = str(status.get("message") or status.get("error") or "")
            reason = str(status.get("reason") or "")
        except (ValueError, AttributeError):
            message, reason = answer.body.decode(errors="replace").strip()[:300], ""
        return KubeError(refusal(self.name, self.namespace, answer.code, message or what), answer.code, reason)


def refusal(cluster: str, namespace: str, code: int, message: str) -> str:
    """The sentence for what an API server says."""
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
        return f"{where} has no room: {_plain(detail)}; ask for less, or for more quota"
    if code == 401:
        return f'the cluster "{cluster}" does not accept the credentials in its kubeconfig; log in to it again'
    if f'namespaces "{namespace}" not found' in message:
        return (
            f'cluster "{cluster}" has no namespace "{namespace}"; make it (kubectl create namespace {namespace}), or '
            "name another one in the cluster's spec"
        )
    return f'the cluster "{cluster}" refuses: {_plain(message)}'


def _is_servers_own(body: bytes) -> bool:
    """Whether an error was said by the API server itself, and not by a Pod behind it."""
    try:
        status = json.loads(body)
    except ValueError:
        return False
    return isinstance(status, dict) and status.get("kind") == "Status"


@contextlib.contextmanager
def _missing_is_fine() -> Iterator[None]:
    try:
        yield
    except KubeError as error:
        if error.code != 404:
            raise


def _forget_files(api: Any) -> None:
    """kr8s writes keys that a kubeconfig holds inline to temporary files, and leaves them there."""
    import tempfile

    for name in ("client_key_file", "client_cert_file", "server_ca_file"):
        path = getattr(api.auth, name, None)
        if path is not None and Path(str(path)).parent == Path(tempfile.gettempdir()):
            with contextlib.suppress(OSError):
                Path(str(path)).unlink()


def _plain(text: str) -> str:
    """A clause without its full stop."""
    return " ".join(text.split()).rstrip(".")
