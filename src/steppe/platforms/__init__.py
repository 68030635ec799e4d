"""The platforms that processes run on: this machine and Kubernetes."""

from steppe.platforms.local import LocalPlatform, LocalProcess

__all__ = ["LocalPlatform", "LocalProcess"]
