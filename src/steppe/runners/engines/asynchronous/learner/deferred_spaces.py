"""A learner whose image does not have the environment: the first worker reports the observation and action spaces."""

from __future__ import annotations

import logging

from steppe.errors import MissingEnvironment, UserError
from steppe.runners.engines.asynchronous.learner.core_factory import make_core
from steppe.runners.engines.asynchronous.learner.engine import AsyncEngine
from steppe.runners.engines.asynchronous.learner.pod_pool import PodWorkerPool, in_pods
from steppe.runners.engines.asynchronous.learner.worker_server import server_opener
from steppe.runners.play.episodes import EpisodeRules
from steppe.runners.setup import num_envs_of
from steppe.specs.experiment import ExperimentSpec

WAIT_SECONDS = 0.2
"""How often the workers are supervised until the first one has connected."""

log = logging.getLogger(__name__)


def engine_with_deferred_spaces(spec: ExperimentSpec, missing: MissingEnvironment) -> AsyncEngine:
    """The engine, once the first worker has reported its spaces; there is no time limit, since Pods may start late."""
    if spec.evaluation is not None:
        raise UserError(
            f"the driver's image does not have the environment that evaluation plays in: {missing}; leave out "
            "evaluation, since workers play greedy episodes too (asynchronous.evaluation_share), or name an image that "
            "has it in kubernetes.driver.image"
        )
    limit, num_envs = spec.max_timesteps_per_episode, num_envs_of(spec)
    pool = PodWorkerPool(spec, EpisodeRules(spec.environment, limit, spec.repeat_actions), num_envs)
    server, access = server_opener(in_pods(spec.asynchronous))(pool.open())
    try:
        pool.start(server, access.token)
        log.info("this image does not have the environment; a worker will report its spaces")
        while (spaces := server.board.wait_for_spaces(WAIT_SECONDS)) is None:
            if (fault := pool.supervise()) is not None:
                raise fault
        core = make_core(spec, spaces, limit)
    except BaseException:
        server.close("the learner could not begin")
        raise
    return AsyncEngine(core, lambda host: (server, access), pool, None, num_envs)
