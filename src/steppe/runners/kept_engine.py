"""The engine that the last check has built, kept for the run of that experiment in this process.

Environments may take minutes to make, so they are made once: a run takes the engine that its check has built. There is
at most one, since the next check closes it.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, NamedTuple

from steppe.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    from steppe.runners._base import Engine

Spreading = tuple[int | None, int | None]
NOT_BUILT = ("name", "seed", "group", "description")
"""The fields that an engine does not depend on."""


class _Kept(NamedTuple):
    spec: ExperimentSpec
    spreading: Spreading
    engine: Engine


_kept: list[_Kept] = []


def keep(spec: ExperimentSpec, spreading: Spreading, engine: Engine) -> None:
    """Keeps an engine in place of the one before; `spreading` are the other arguments of `make_engine`."""
    release()
    _kept.append(_Kept(spec, spreading, engine))


def take(spec: ExperimentSpec, spreading: Spreading) -> tuple[ExperimentSpec, Engine] | None:
    """The engine for such an experiment, with its spec, whose settings are read already; None if another was kept."""
    if not _kept:
        return None
    kept = _kept.pop()
    same = kept.spec.model_copy(update={name: getattr(spec, name) for name in NOT_BUILT})
    if kept.spreading == spreading and same.model_dump(mode="json") == spec.model_dump(mode="json"):
        return same, kept.engine
    kept.engine.close()
    return None


@atexit.register
def release() -> None:
    """Closes the engine that is kept, if there is one."""
    while _kept:
        _kept.pop().engine.close()
