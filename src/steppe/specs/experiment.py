"""An experiment: what is learned, where, for how long, and what is written down on the way."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ModelWrapValidatorHandler, PrivateAttr, model_validator

from steppe.errors import SpecError
from steppe.specs._base import Count, Flag, Natural, Number, Positive, Spec
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.defaults_by_kind import defaults_for, kind_of
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.loading.files import EFFECTIVE, check_plain, find_config, read_spec_file, shown_path
from steppe.specs.loading.inlining import MEANT_BY_TEXT, inline
from steppe.specs.loading.overrides import parse_override, put
from steppe.specs.loading.validation import Origins, join_path, validate
from steppe.specs.running.asynchronous import AsyncSpec
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.running.distributed import DistributedSpec, RaySpec
from steppe.specs.running.frequency import Frequency
from steppe.specs.running.kubernetes import KubernetesSpec
from steppe.tensorforce import client_files
from steppe.tensorforce.environment_names import Notices

DEFAULT_LIMITS = (10_000, 1_000_000)
"""How many episodes and timesteps an experiment runs that names neither."""
DEFAULT_AGENT = "ppo"
"""What learns in an experiment that names no agent."""
SWITCHED_OFF_BY_NONE = ("final_evaluation",)
"""Fields for which None means null instead of not given."""
OLD_FIELDS = {"timesteps": "total_timesteps", "max_episode_timesteps": "max_timesteps_per_episode"}
"""Names of fields in old files and in TensorForce's runner -> today's."""
_OPTIONS = {"name": "-n/--name", "environment": "-E/--environment"}
"""What gives the fields that a file may leave out, for `steppe train` and `steppe experiment new`."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_NAME_RULE = (
    'a name is made of letters, digits, ".", "_" and "-", does not start with "." or "-", '
    'and has no ".." and at most 100 characters'
)


def valid_name(name: str) -> str:
    """The name itself when a folder can safely be called so, else a SpecError."""
    try:
        return _checked_name(name)
    except ValueError as error:
        raise SpecError(f'wrong name "{name}"; {error}') from None


def _checked_name(name: str) -> str:
    if not _is_name(name):
        raise ValueError(_NAME_RULE)
    return name


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and ".." not in text


def _not_in_episodes(frequency: Frequency) -> Frequency:
    if frequency.unit == "e":
        raise ValueError('summaries are written by seconds or timesteps, such as "120s" or "5000t", not by episodes')
    return frequency


def _fits_a_key(seed: int) -> int:
    # JAX silently drops what does not fit, so that different seeds would give the same run.
    if seed >= 2**32:
        raise ValueError(f"a seed is at most {2**32 - 1}")
    return seed


class EvaluationSpec(Spec):
    """How the policy is measured while it learns."""

    every: Count = 10_000
    """How many timesteps lie between two evaluations."""
    episodes: Count = 10
    """How many episodes each evaluation plays."""
    greedy: Flag = True
    """Whether the most likely action is taken instead of a random one."""


class FinalEvaluationSpec(Spec):
    """How the last and the best policy are measured at the end of a run."""

    episodes: Count = 20
    """How many episodes each of them plays; fewer if the time is over."""
    greedy: Flag = True
    """Whether the most likely action is taken instead of a random one."""
    seconds: Positive | None = None
    """How long it may take; without it a tenth of the time spent training, at least 20 s and at most 60."""
    hand_out: Literal["better", "last"] = "better"
    """Which policy is in policy/ afterwards: the one with the larger mean return, or the last one in any case."""


class ExperimentSpec(Spec):
    """One experiment, its sub-specs inlined."""

    name: Annotated[str, AfterValidator(_checked_name)]
    """The experiment's name, and its folder's."""
    description: str = ""
    """What it is about, for people."""
    group: Annotated[str, AfterValidator(_checked_name)] | None = None
    """The group that it belongs to: experiments that differ in their seeds, as --seeds makes them."""
    environment: EnvironmentSpec
    """What it learns in."""
    agent: AgentSpec
    """What learns; `ppo` where a file or a command names none."""
    network: NetworkSpec | None = None
    """The agent's network; without one it follows from the observation's shape."""
    cluster: ClusterSpec | None = None
    """The cluster to run on."""
    platform: Literal["local", "ray", "kubernetes"] = "local"
    """Where its processes run."""
    episodes: Count | None = None
    """How many episodes it runs, over all environments and workers."""
    total_timesteps: Count | None = None
    """How many timesteps it runs; with neither this nor episodes: 1,000,000 timesteps or 10,000 episodes."""
    max_timesteps_per_episode: Count | None = None
    """When an episode is cut off; without it the environment's own limit holds."""
    deterministic: Flag = False
    """Whether the agent acts without exploring."""
    repeat_actions: Count = 1
    """How many times the environment is stepped with each action."""
    debug_logging: Flag = False
    """Whether the log holds details."""
    run_mode: Literal["single", "multi-threaded", "distributed", "async"] = "single"
    """How the work is spread."""
    num_workers: Count = 3
    """How many workers act, in every run mode but single."""
    num_parameter_servers: Natural = 1
    """How many parameter servers share the parameters, in run mode distributed."""
    distributed: DistributedSpec = DistributedSpec()
    """What parameter servers and workers agree on, in run mode distributed."""
    asynchronous: AsyncSpec = AsyncSpec()
    """What the learner and its workers agree on, in run mode async."""
    ray: RaySpec = RaySpec()
    """The Ray that run modes distributed and async use."""
    kubernetes: KubernetesSpec = KubernetesSpec()
    """How its Pods are made, on platform kubernetes; before what the cluster's spec says."""
    saver_frequency: Frequency = Frequency(600, "s")
    """How often a checkpoint is written."""
    summary_frequency: Annotated[Frequency, AfterValidator(_not_in_episodes)] = Frequency(5000, "t")
    """How often metrics are written, in seconds or timesteps."""
    num_envs: Count | None = None
    """How many environments each worker steps together; without it the agent's own default."""
    seed: Annotated[Natural, AfterValidator(_fits_a_key)] | None = None
    """What all randomness follows from; without it each run differs."""
    evaluation: EvaluationSpec | None = None
    """How the policy is measured on the way; not at all without it."""
    final_evaluation: FinalEvaluationSpec | None = FinalEvaluationSpec()
    """How the last and the best policy are measured at the end of the run; null: not at all."""
    stop_at_return: Number | None = None
    """The mean return of the last 100 episodes that ends the experiment."""
    video: Flag = True
    """Whether a finished run leaves a film of one episode, where the environment can be drawn."""
    schema_version: Literal[1] = 1
    """Which version of these fields this is."""

    _notices: Notices = PrivateAttr(default_factory=Notices)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know of how the file was understood; no part of the value."""
        return self._notices.sentences

    @model_validator(mode="wrap")
    @classmethod
    def _understand_old_words(cls, data: Any, handler: ModelWrapValidatorHandler[ExperimentSpec]) -> ExperimentSpec:
        notices: tuple[str, ...] = ()
        if client_files.is_old(data):
            data, notices = client_files.in_present_words(data)
        spec = handler(_in_present_words(data))
        if notices:
            spec._notices = Notices(notices)
        return spec

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
        """(episodes, total_timesteps), None where there is no limit."""
        if self.episodes is None and self.total_timesteps is None:
            return DEFAULT_LIMITS
        return self.episodes, self.total_timesteps


def load_experiment(
    file: str | Path | None, overrides: dict[str, Any], sets: list[str], start: Path, *, options: bool = True
) -> ExperimentSpec:
    """The experiment in `file`, then `overrides` (None is not given), then each `path=value` of `sets`.

    Sub-specs given by name are looked up and inlined, and without an agent it is DEFAULT_AGENT. `options` says whether
    errors speak of command-line options, such as `--episodes`.
    """
    data: dict[str, Any] = {}
    origins = Origins()
    given = {
        key: copy.deepcopy(value)
        for key, value in overrides.items()
        if value is not None or key in SWITCHED_OFF_BY_NONE
    }
    if file is not None:
        path = find_config(file, "experiment", start)
        data, origins = _read(path)
        # What is overridden anyway need not be found.
        data = {key: value for key, value in data.items() if key not in given}
        data, origins = inline(data, origins, path.parent, path)
    for key, value in given.items():
        data[key] = value
        place = (f"--{key.replace('_', '-')}", "") if options else ("", key)
        origins = origins.with_part((key,), *place)
        if options and key in MEANT_BY_TEXT and isinstance(value, str):
            origins = origins.with_part((key, MEANT_BY_TEXT[key]), *place)
    if data.get("agent") is None:
        data["agent"] = DEFAULT_AGENT
    data, origins = inline(data, origins, start)
    for text in sets:
        steps, value = parse_override(text)
        written = put(data, steps, value, text)
        origins = origins.with_part(written, "--set", join_path("", written))
        data, origins = inline(data, origins, start)
    spec = validate(ExperimentSpec, data, source=origins, options=_OPTIONS if options else None)
    # Both take whatever the environment or the agent takes, so the model cannot tell what JSON would lose.
    rule = "it must be something that JSON can hold"
    check_plain(spec.environment.settings, origins.below("environment", "settings"), rule=rule)
    check_plain(spec.agent.settings, origins.below("agent"), rule=rule)
    spec.agent.written_in(origins.below("agent"))
    return spec


def dump(spec: ExperimentSpec) -> dict[str, Any]:
    """The full spec with every sub-spec inlined, ready for JSON; loading it gives the same spec."""
    return spec.model_dump(mode="json")


def _read(path: Path) -> tuple[dict[str, Any], Origins]:
    """(data, where it was written); a file that gives no name gives its own."""
    data, origins = read_spec_file(path), Origins(shown_path(path))
    if not isinstance(data, dict):
        validate(ExperimentSpec, data, source=origins)
    name = {"name": path.stem} if _is_name(path.stem) else {}
    return name | _in_present_words(data), origins


def _in_present_words(data: Any) -> Any:
    """An old tfcli file says `"type": "experiment"`, and some fields had other names; what a run noted is no field."""
    if not isinstance(data, dict):
        return data
    data = {key: value for key, value in data.items() if (key, value) != ("type", "experiment") and key != EFFECTIVE}
    for old, new in OLD_FIELDS.items():
        if old in data and new not in data:
            data[new] = data.pop(old)
    return data
