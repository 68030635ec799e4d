"""A client for operators of a running endpoint: its state, its versions, pinning and reloading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

from steppe.errors import SteppeError, UserError
from steppe.serve.clients._base import EndpointAccess, EndpointAway, EndpointFault
from steppe.serve.clients.connection import ClientConnection
from steppe.specs.loading.suggestions import did_you_mean

Value = TypeVar("Value")


class Operator:
    """Talks to one of Steppe's own endpoints; failures are errors at once."""

    def __init__(self, access: EndpointAccess) -> None:
        self._access = access
        self._connection = ClientConnection(access)

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def standing(self) -> dict[str, Any]:
        """`endpoint` (routers, policies, shadows, episodes, the ledger) and `server`, in plain values."""
        data = self._now(lambda: self._connection.ask("GET", "/standing"))
        if not isinstance(data.get("endpoint"), dict):
            raise EndpointFault(f"{self._access.url} did not say how it stands; is it one of Steppe's endpoints?")
        return data

    def policy(self, name: str | None) -> dict[str, Any]:
        """One policy of the endpoint; without a name its only one."""
        policies = {each["name"]: each for each in self.standing()["endpoint"]["policies"]}
        if name is None:
            if len(policies) > 1:
                raise UserError(f"{self._access.url} serves {', '.join(policies)}; choose one by --policy")
            return next(iter(policies.values()))
        if name not in policies:
            way_out = did_you_mean(name, policies) or f"; it serves {', '.join(policies)}"
            raise UserError(f'{self._access.url} serves no policy "{name}"{way_out}')
        return policies[name]

    def pin(self, policy: dict[str, Any], version: str | None) -> dict[str, Any]:
        """Puts a version into service until further notice (None: the newest); returns the state of the policy."""
        known = policy["versions"]
        if version is not None and version not in known:
            way_out = did_you_mean(version, known) or f"; there are {', '.join(known)}"
            raise UserError(f'policy "{policy["name"]}" has no version "{version}"{way_out}')
        self._load(policy["name"], {"parameters": {"version": version}})
        return self.policy(policy["name"])

    def reload(self) -> list[str]:
        """Lets the endpoint look for newer policies; returns its sentences on what is new."""
        news = self._load(self.standing()["endpoint"]["name"], {}).get("news")
        return [str(each) for each in news] if isinstance(news, list) else []

    def _load(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        path = f"/v2/repository/models/{quote(name, safe='')}/load"
        return self._now(lambda: self._connection.ask("POST", path, message))

    def _now(self, attempt: Callable[[], Value]) -> Value:
        try:
            return attempt()
        except EndpointAway as away:
            raise SteppeError(f"cannot reach the endpoint at {self._access.url} ({away}); is it running?") from None


def version_before(policy: dict[str, Any]) -> str:
    """The version before the one in service."""
    known, current = policy["versions"], policy["version"]
    position = known.index(current) if current in known else 0
    if position == 0:
        raise UserError(f'policy "{policy["name"]}" has no version before {current}, so there is nothing to go back to')
    return known[position - 1]
