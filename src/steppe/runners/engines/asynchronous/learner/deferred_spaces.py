"""A learner in a Pod whose image does not have the environment: what is observed and done is heard from a worker."""

from __future__ import annotations

import logging

from steppe.errors import MissingEnvironment, UserError
from steppe.runners.engines.asynchronous.learner.core_factory import make_core
from steppe.runners.engines.asynchronous.learner.engine import AsyncEngine
from steppe.runners.engines.asynchronous.learner.open_server import server_opener
from steppe.runners.engines.asynchronous.learner.pod_pool import PodWorkerPool, in_pods
from steppe.runners.play.episodes import EpisodeRules
from steppe.runners.setup import num_envs_of
from steppe.specs.experiment import ExperimentSpec

WAIT_SECONDS = 0.2
"""How often the workers are looked after until the first of them has come."""

log = logging.getLogger(__name__)


def engine_with_deferred_spaces(spec: ExperimentSpec, missing: MissingEnvironment) -> AsyncEngine:
    """The learner once a worker has told its spaces; for as long as that takes, as with every Pod."""
    if spec.evaluation is not None:
        raise UserError(
            f"the driver's image does not have the environment that evaluation plays in: {missing}; leave out "
            "evaluation, since workers play greedy episodes too (asynchronous.evaluation_share), or name an image that "
            "has it in kubernetes.driver.image"
        )
    limit, num_envs = spec.max_timesteps_per_episode, num_envs_of(spec)
    crew = PodWorkerPool(spec, EpisodeRules(spec.environment, limit, spec.repeat_actions), num_envs)
    server, access = server_opener(in_pods(spec.asynchronous))(crew.open())
    try:
        crew.start(server, access.token)
        log.info("this image does not have the environment; a worker will tell what is observed and done in it")
        while (spaces := server.board.wait_for_spaces(WAIT_SECONDS)) is None:
            if (fault := crew.tend()) is not None:
                raise fault
        core = make_core(spec, spaces, limit)
    except BaseException:
        server.close("the learner could not begin")
        raise
    return AsyncEngine(core, lambda host: (server, access), crew, None, num_envs)
