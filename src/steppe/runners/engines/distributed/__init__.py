"""Run mode distributed: parameter servers and workers on Ray. Importing this is light.

`engine` is the driver. `parameter_server` and `gradient_worker` run in other processes; `server_pool` and
`gradient_worker_pool` are the driver's side of them, and `exchange` is a worker's side of the servers. `gradient_tape`
and `rollout_learner` turn an agent's rollouts into gradients.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from steppe.errors import MissingExtra
from steppe.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    from steppe.runners._base import Engine

__all__ = ["checked_engine", "make_engine"]


def make_engine(spec: ExperimentSpec) -> Engine:
    """The engine of an experiment; `begin` or `restore` starts Ray, servers and workers."""
    from steppe.runners.engines.distributed.engine import DistributedEngine

    return DistributedEngine(spec)


def checked_engine(spec: ExperimentSpec) -> tuple[Engine, list[str]]:
    """The engine, with notices; a UserError says why an experiment cannot be run by parameter servers and workers."""
    from steppe.runners.ray.placement import check_sharing
    from steppe.runners.ray.ray_session import has_token

    if spec.platform != "kubernetes" and find_spec("ray") is None:
        raise MissingExtra('run mode "distributed"', "cluster")
    check_sharing(spec)
    engine = make_engine(spec)
    notices = []
    ray = spec.ray
    if spec.platform == "local" and ray.port is not None and ray.address is None and not has_token():
        notices.append(
            f"ray.port {ray.port} takes in other machines, which needs a token that they know too; set RAY_AUTH_TOKEN "
            "before the run starts"
        )
    if spec.distributed.synchronous:
        unused = [name for name in ("max_staleness", "overlap") if getattr(spec.distributed, name)]
        notices += [f"distributed.{name} has no effect: synchronous workers wait for each other" for name in unused]
    if not spec.distributed.synchronous and spec.seed is not None:
        notices.append(
            'with "synchronous": false workers do not wait for each other, so runs with the same seed differ'
        )
    return engine, notices
