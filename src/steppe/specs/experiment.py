"""An experiment: environment, agent, limits, and the records of a run."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PrivateAttr, model_validator

from steppe.errors import SpecError
from steppe.specs._base import Count, Flag, Natural, Notices, Number, Positive, Spec
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.defaults_by_kind import defaults_for, kind_of
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.running.asynchronous import AsyncSpec
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.running.distributed import DistributedSpec, RaySpec
from steppe.specs.running.frequency import Frequency
from steppe.specs.running.kubernetes import KubernetesSpec

DEFAULT_LIMITS = (10_000, 1_000_000)
"""(episodes, timesteps) of an experiment that gives neither."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_NAME_RULE = (
    'a name is made of letters, digits, ".", "_" and "-", does not start with "." or "-", '
    'and has no ".." and at most 100 characters'
)


def valid_name(name: str) -> str:
    """The name itself if a folder can safely have it, else a SpecError."""
    try:
        return _checked_name(name)
    except ValueError as error:
        raise SpecError(f'wrong name "{name}"; {error}') from None


def _checked_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(_NAME_RULE)
    return name


def is_name(text: str) -> bool:
    """Whether an experiment may have this name."""
    return _NAME.fullmatch(text) is not None and ".." not in text


def _not_in_episodes(frequency: Frequency) -> Frequency:
    if frequency.unit == "e":
        raise ValueError('summaries are written by seconds or timesteps, such as "120s" or "5000t", not by episodes')
    return frequency


def _fits_a_key(seed: int) -> int:
    # JAX silently drops the higher bits, so that different seeds would give the same run.
    if seed >= 2**32:
        raise ValueError(f"a seed is at most {2**32 - 1}")
    return seed


class EvaluationSpec(Spec):
    """Evaluations of the policy during training."""

    every: Count = 10_000
    """The number of timesteps between two evaluations."""
    episodes: Count = 10
    """The number of episodes of each evaluation."""
    greedy: Flag = True
    """Whether the most likely action is taken instead of a random one."""


class FinalEvaluationSpec(Spec):
    """The evaluation of the last and the best policy at the end of a run."""

    episodes: Count = 20
    """The number of episodes that each of them plays; fewer if the time limit is reached."""
    greedy: Flag = True
    """Whether the most likely action is taken instead of a random one."""
    seconds: Positive | None = None
    """Its time limit in seconds; by default a tenth of the training time, at least 20 s and at most 60 s."""
    hand_out: Literal["better", "last"] = "better"
    """The policy saved in policy/: the one with the larger mean return, or always the last one."""


class ExperimentSpec(Spec):
    """One experiment, its sub-specs inlined."""

    name: Annotated[str, AfterValidator(_checked_name)]
    """The experiment's name, and its folder's."""
    description: str = ""
    """A description for people."""
    group: Annotated[str, AfterValidator(_checked_name)] | None = None
    """The group it belongs to: experiments that differ only in their seeds, as --seeds makes them."""
    environment: EnvironmentSpec
    """The environment."""
    agent: AgentSpec
    """The agent that learns; `ppo` if a file or a command names none."""
    network: NetworkSpec | None = None
    """The agent's network; by default it follows from the observation's shape."""
    cluster: ClusterSpec | None = None
    """The cluster to run on."""
    platform: Literal["local", "ray", "kubernetes"] = "local"
    """The platform on which its processes run."""
    episodes: Count | None = None
    """The number of episodes to run, over all environments and workers."""
    total_timesteps: Count | None = None
    """The number of timesteps to run; with neither this nor episodes: 1,000,000 timesteps or 10,000 episodes."""
    max_timesteps_per_episode: Count | None = None
    """The timestep at which an episode is truncated; by default the environment's own limit."""
    deterministic: Flag = False
    """Whether the agent acts without exploring."""
    repeat_actions: Count = 1
    """The number of times that the environment is stepped with each action."""
    debug_logging: Flag = False
    """Whether the log contains details."""
    run_mode: Literal["single", "multi-threaded", "distributed", "async"] = "single"
    """How the work is spread over threads and processes."""
    num_workers: Count = 3
    """The number of workers that act, in every run mode but single."""
    num_parameter_servers: Natural = 1
    """The number of parameter servers that share the parameters, in run mode distributed."""
    distributed: DistributedSpec = DistributedSpec()
    """Settings of run mode distributed."""
    asynchronous: AsyncSpec = AsyncSpec()
    """Settings of run mode async."""
    ray: RaySpec = RaySpec()
    """The Ray that run modes distributed and async use."""
    kubernetes: KubernetesSpec = KubernetesSpec()
    """The Pods of platform kubernetes; takes precedence over the cluster's spec."""
    saver_frequency: Frequency = Frequency(600, "s")
    """How often a checkpoint is written."""
    summary_frequency: Annotated[Frequency, AfterValidator(_not_in_episodes)] = Frequency(5000, "t")
    """How often metrics are written, in seconds or timesteps."""
    num_envs: Count | None = None
    """The number of environments that each worker steps together; by default the agent's own."""
    seed: Annotated[Natural, AfterValidator(_fits_a_key)] | None = None
    """The seed of all randomness; without it each run differs."""
    evaluation: EvaluationSpec | None = None
    """Evaluations during training; none by default."""
    final_evaluation: FinalEvaluationSpec | None = FinalEvaluationSpec()
    """The evaluation of the last and the best policy at the end of the run; null switches it off."""
    stop_at_return: Number | None = None
    """The mean return of the last 100 episodes that ends the experiment."""
    video: Flag = True
    """Whether a finished run leaves a video of one episode, if the environment can be rendered."""
    schema_version: Literal[1] = 1
    """The version of these fields."""

    _notices: Notices = PrivateAttr(default_factory=Notices)

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user about how the file was read; no part of the value."""
        return self._notices.sentences

    def with_notices(self, sentences: tuple[str, ...]) -> ExperimentSpec:
        """The same experiment with these notices."""
        self._notices = Notices(sentences)
        return self

    @model_validator(mode="after")
    def _has_the_defaults_of_its_kind(self) -> ExperimentSpec:
        if self.agent.is_for_tensorforce:
            return self
        defaults = defaults_for(self.agent.type, kind_of(self.environment))
        environment = self.environment
        unsaid = {
            name: value for name, value in defaults.environment.items() if name not in environment.model_fields_set
        }
        # The model is frozen, and a validator must return the instance it was given.
        object.__setattr__(self, "agent", self.agent.suited_to(defaults))
        object.__setattr__(self, "environment", environment.model_copy(update=unsaid))
        return self

    @model_validator(mode="after")
    def _has_servers(self) -> ExperimentSpec:
        if self.run_mode == "distributed" and self.num_parameter_servers < 1:
            raise ValueError('run mode "distributed" needs at least 1 of num_parameter_servers')
        return self

    @model_validator(mode="after")
    def _has_its_ray(self) -> ExperimentSpec:
        if self.platform != "ray" and self.ray.address is not None:
            raise ValueError(
                f'a Ray at {self.ray.address} is joined on platform "ray" only; give that (--platform ray)'
            )
        if self.platform == "ray" and self.ray.address is None:
            raise ValueError(
                'platform "ray" needs the address of a Ray cluster in ray.address (--address host:port); to have a Ray '
                'started on this machine, leave the platform "local"'
            )
        if self.platform == "ray" and self.run_mode not in ("distributed", "async"):
            raise ValueError(
                f'run mode "{self.run_mode}" is one process, with nothing for platform "ray" to place; choose run mode '
                '"distributed" or "async" (-m), or platform "local"'
            )
        return self

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """(episodes, total_timesteps), None if there is no limit."""
        if self.episodes is None and self.total_timesteps is None:
            return DEFAULT_LIMITS
        return self.episodes, self.total_timesteps


def dump(spec: ExperimentSpec) -> dict[str, Any]:
    """The full spec with every sub-spec inlined, ready for JSON; loading it gives the same spec."""
    return spec.model_dump(mode="json")
