"""The doors of an experiment's Pods, as a client asks them through the API server."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from steppe.errors import ClusterError
from steppe.platforms.kubernetes.agreement import DOOR_TOKEN, TOKEN_HEADER
from steppe.platforms.kubernetes.client.kubeapi import ANSWER_SECONDS, Answer, Kube, KubeError
from steppe.runners.pods import DOOR_PORT

Json = dict[str, Any]
DOOR_SECONDS = 10.0
"""How long a driver may take to answer: it is busy with other things."""
FORBIDDEN = (401, 403)
"""What an API server says to those who may not ask: waiting does not help them."""


class Doors:
    """Those of the Pods whose names begin with `run`."""

    def __init__(self, kube: Kube, run: str) -> None:
        self._kube, self._run = kube, run
        self._token: str | None = None
        self.silence = ""
        """Why the last Pod that was asked how it is going has not said so; empty where it has."""

    def status_at(self, pod: Json) -> Json | None:
        """How it is going, as a Pod says; None where it does not answer. KubeError where nobody here may ask."""
        self.silence = ""
        try:
            answer = self.ask(pod["metadata"]["name"], "/status", seconds=DOOR_SECONDS)
        except KubeError as error:
            if error.code in FORBIDDEN:
                raise
            self.silence = str(error) if error.code else f"no answer within {DOOR_SECONDS:g} s"
            return None
        if answer.code != 200:
            self.silence = str(self.refused(answer, f"its answer has the code {answer.code}"))
            return None
        return dict(json.loads(answer.body))

    def ask(
        self,
        pod: str,
        path: str,
        *,
        method: str = "GET",
        body: Json | None = None,
        headers: dict[str, str] | None = None,
        sink: Callable[[bytes], Any] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """What a Pod answers, whatever it says."""
        shown = {TOKEN_HEADER: self.token()} | (headers or {})
        return self._kube.ask_pod(
            pod, DOOR_PORT, path, method=method, headers=shown, body=body, sink=sink, seconds=seconds
        )

    def expect(self, answer: Answer) -> bytes:
        """What an answer holds that is no error."""
        if answer.code >= 400:
            raise self.refused(answer, "the Pod")
        return bytes(answer.body)

    def refused(self, answer: Answer, what: str) -> KubeError:
        """The error for an answer that is one: in the Pod's own words, where it is the Pod that refuses."""
        try:
            sentence = str(json.loads(answer.body)["error"])
        except (ValueError, KeyError, TypeError):
            return self._kube.refused(answer, what)
        return KubeError(f"the Pod refuses: {sentence}", answer.code)

    def token(self) -> str:
        """What every question shows."""
        if self._token is None:
            secret = self._kube.get("Secret", f"{self._run}-tokens")
            if secret is None:
                raise ClusterError(
                    f'Secret {self._run}-tokens is gone from namespace "{self._kube.namespace}"; start the experiment '
                    "again with resume"
                )
            self._token = b64decode(secret["data"][DOOR_TOKEN]).decode().strip()
        return self._token
