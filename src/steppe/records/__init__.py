"""What a run leaves behind: metrics, checkpoints, policies, reports and videos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steppe.policies.policy import Policy, PolicyDescription, load_policy

__all__ = ["Policy", "PolicyDescription", "load_policy"]


def __getattr__(name: str) -> Any:
    # A command that only reads metrics must not pay for the policy's imports.
    if name in __all__:
        from steppe.policies import policy

        return getattr(policy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
