"""Where processes run; each platform is one file beside `_base.py`."""

from steppe.platforms._base import Platform, Process
from steppe.platforms.local import LocalPlatform, LocalProcess

__all__ = ["LocalPlatform", "LocalProcess", "Platform", "Process"]
