"""The client of the status servers in an experiment's Pods, which it reaches through the API server."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from steppe.errors import ClusterError
from steppe.platforms.kubernetes.agreement import STATUS_TOKEN, TOKEN_HEADER
from steppe.platforms.kubernetes.client.kubeapi import ANSWER_SECONDS, FORBIDDEN, Kube, KubeAnswer, KubeError
from steppe.runners.pods import DOOR_PORT

Json = dict[str, Any]
STATUS_SECONDS = 10.0
"""How long a driver may take to tell its status: it is busy with other things."""


class StatusClient:
    """Sends requests to the Pods of one run, whose names begin with `run`."""

    def __init__(self, kube: Kube, run: str) -> None:
        self._kube, self._run = kube, run
        self._token: str | None = None
        self.silence = ""
        """Why the last Pod that was asked for its status has not answered; empty if it has."""

    def status_at(self, pod: Json) -> Json | None:
        """The status that a Pod reports; None if it does not answer. KubeError if the user may not ask Pods."""
        self.silence = ""
        try:
            answer = self.request(pod["metadata"]["name"], "/status", seconds=STATUS_SECONDS)
        except KubeError as error:
            if error.code in FORBIDDEN:
                raise
            self.silence = str(error) if error.code else f"no answer within {STATUS_SECONDS:g} s"
            return None
        if answer.code != 200:
            self.silence = str(self.refused(answer, f"its answer has the code {answer.code}"))
            return None
        return dict(json.loads(answer.body))

    def request(
        self,
        pod: str,
        path: str,
        *,
        method: str = "GET",
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        sink: Callable[[bytes], Any] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> KubeAnswer:
        """The answer of a Pod, errors included."""
        headers = {TOKEN_HEADER: self.token()} | (headers or {})
        return self._kube.ask_pod(
            pod, DOOR_PORT, path, method=method, headers=headers, body=body, sink=sink, seconds=seconds
        )

    def body_of(self, answer: KubeAnswer) -> bytes:
        """The body of an answer; KubeError if the answer is an error."""
        if answer.code >= 400:
            raise self.refused(answer, "the Pod")
        return answer.body

    def refused(self, answer: KubeAnswer, what: str) -> KubeError:
        """The KubeError for an answer with an error code, in the Pod's own words if the Pod has refused."""
        try:
            sentence = str(json.loads(answer.body)["error"])
        except (ValueError, KeyError, TypeError):
            return self._kube.refused(answer, what)
        return KubeError(f"the Pod refuses: {sentence}", answer.code)

    def token(self) -> str:
        """The token that every request carries."""
        if self._token is None:
            secret = self._kube.get("Secret", f"{self._run}-tokens")
            if secret is None:
                raise ClusterError(
                    f'Secret {self._run}-tokens is gone from namespace "{self._kube.namespace}"; start the experiment '
                    "again with resume"
                )
            self._token = b64decode(secret["data"][STATUS_TOKEN]).decode().strip()
        return self._token
