"""Writes docs/fields.md from the models that check the files: `python docs/generate_fields.py`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from steppe import agents
from steppe.agents.core.off_policy import MemorySettings
from steppe.cli.catalogue import agent_sentence
from steppe.envs.gymnasium.atari import AtariSettings
from steppe.envs.registry import COMPILED
from steppe.spec_files import DEFAULT_AGENT
from steppe.specs.describing import field_rows
from steppe.specs.describing.field_rows import Row, Word
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.experiment import EvaluationSpec, ExperimentSpec, FinalEvaluationSpec
from steppe.specs.learning import defaults_by_kind
from steppe.specs.learning.agent import AgentSpec
from steppe.specs.learning.baseline import BaselineSpec
from steppe.specs.learning.exploration import Noise
from steppe.specs.learning.layer_options import Activation
from steppe.specs.learning.network import Layer
from steppe.specs.learning.optimizer import OptimizerSpec
from steppe.specs.learning.preprocessing import Stage
from steppe.specs.running.cluster import ClusterSpec
from steppe.specs.running.connections import CONNECTIONS
from steppe.specs.running.distributed import TLSSpec

PAGE = Path(__file__).with_name("fields.md")

INTRODUCTION = """\
# Every field

This page is made from the code that checks the files (`python docs/generate_fields.py`), so it is never out of date.
The same is told by `steppe schema experiment`, `steppe agents NAME`, `steppe layers` and `steppe environments NAME`.
[Experiment files](experiment-files.md) says where fields are written and how a file is found.

`null` means "not given". A whole number may be written `1e6`. A **frequency** is `"600s"` (seconds), `"100e"`
(episodes) or `"5000t"` (timesteps); a bare number means seconds.
"""

NOTES = {
    "Experiment": """\
A file that gives no name is called like the file. `environment` and `agent` may be plain names, and every sub-spec may
be the name of another file.

Limits are looked at between iterations. One iteration is the agent's horizon times `num_envs` timesteps, so a run may
end a little above `total_timesteps` or `episodes`. A timestep is one decision of the agent in one environment: with
`repeat_actions` 4 the environment itself makes four steps in it.

[Run modes](run-modes.md) explains `run_mode`, `num_workers`, `num_parameter_servers`, `distributed`, `asynchronous` and
`ray`. [Kubernetes](kubernetes.md) explains platform `kubernetes`, `cluster` and `kubernetes`.
""",
    "Environment": "See [environments](environments.md).\n",
    "Agent": """\
An agent is written as its name, `"ppo"`, or as an object with `type` and any of the settings below. A name that ends in
`_agent`, such as `"ppo_agent"`, means the same agent. `num_envs` is a field of the experiment; each agent has its own
default for it. [Agents](agents.md) says which one to take, and which of TensorForce's words are understood.
""",
    "Optimizers": """\
The `optimizer` of an agent: a word, `"adam"`, or an object with `type` and options. `learning_rate` may stand among the
options of each; it is the agent's `learning_rate`.
""",
    "Exploration": """\
The `exploration` of an agent, which TensorForce called `actions_exploration`: a word or an object with `type` and
options. Agents for discrete actions take those that give a share of random actions; agents for continuous actions take
all of them.
""",
    "Memory": """\
The `memory` of an agent that learns from replayed transitions: a word or an object. The capacity is that of `dqn`; the
agent's own table has its defaults. Other agents learn from what they just saw and have no such setting.
""",
    "Baselines": "The `baseline` of a policy-gradient agent: its value network, an object with `type` and options.\n",
    "Preprocessing stages": """\
`states_preprocessing` and `reward_preprocessing` of an agent are lists of stages; a stage without options may be just
its word. See [preprocessing](preprocessing.md).
""",
    "Network": """\
A network is a list of layers, first to last, or a list of such lists, each a branch from an `input` to an `output`. The
agent adds its own output layer. Without a network an agent takes two dense layers of 64 with tanh; `ddpg`, `td3`, `sac`
and `naf` two of 256 with relu, and `pqn` two of 128 with layer normalisation. For images of at least 36 pixels it is
the three convolutions of Mnih et al. 2015 and a dense layer of 512, and for smaller images two convolutions and a dense
layer of 256. What an `input` reads are the parts of a Dict observation.
""",
    "Cluster": "See [Kubernetes](kubernetes.md).\n",
}

KINDS: dict[str, Any] = {
    "Optimizers": OptimizerSpec,
    "Exploration": Noise,
    "Baselines": BaselineSpec,
    "Preprocessing stages": Stage,
}
"""Section -> the objects of one kind that settings are made of."""
ANCHORS = {
    "activation": "activations",
    "baseline": "baselines",
    "final evaluation": "final-evaluation",
    "layer": "network",
    "optimizer": "optimizers",
    "preprocessing stage": "preprocessing-stages",
}
"""Where a kind of object is told, if not in a section of its own name."""


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page as Markdown."""
    parts = [INTRODUCTION]
    parts += _section("Experiment", ExperimentSpec)
    parts += _section("TLS", TLSSpec, level=3)
    parts += _section("Evaluation", EvaluationSpec, level=3)
    parts += _section("Final evaluation", FinalEvaluationSpec, level=3)
    parts += _section("Environment", EnvironmentSpec)
    for title, settings in _environments():
        parts += [f"### Settings of {title}\n", f"{field_rows.sentence(settings)}\n", _table(settings)]
    parts.append(f"## Agent\n\n{NOTES['Agent']}")
    for name in agents.names():
        algorithm = agents.agent_class(AgentSpec(type=name))
        count = algorithm.default_num_envs
        by_default = f"By default {count} environment{'' if count == 1 else 's'}."
        parts += [f"### {name}\n", f"{agent_sentence(name)} {by_default}\n", _table(algorithm.Settings)]
        parts += [f"{sentence}\n" for sentence in defaults_by_kind.sentences(name)]
    parts += _section("Memory", MemorySettings)
    for title, union in KINDS.items():
        parts += [f"## {title}\n", NOTES[title], _members(union)]
    parts.append(f"## Network\n\n{NOTES['Network']}")
    for kind, layer in field_rows.members(Layer).items():
        parts += [f"### {kind}\n", f"{field_rows.sentence(layer)}\n", _table(layer)]
    names = ", ".join(f"`{name}`" for name in get_args(Activation))
    parts.append(f"### Activations\n\n{names}; `lrelu` means `leaky_relu`.\n")
    parts += _section("Cluster", ClusterSpec)
    return "\n".join(part for part in parts if part)


def _section(title: str, model: type[BaseModel], level: int = 2) -> list[str]:
    without_type = model is not MemorySettings
    return [f"{'#' * level} {title}\n", NOTES.get(title, ""), _table(model, without_type)]


def _environments() -> Iterator[tuple[str, type[BaseModel]]]:
    for id, (module, name) in COMPILED.items():
        yield id, getattr(import_module(f"steppe.envs.compiled.{module}"), name)
    yield "Atari games", AtariSettings
    yield from CONNECTIONS.items()


def _table(model: type[BaseModel], without_type: bool = True) -> str:
    rows = field_rows.rows(model, without_type=without_type)
    if not rows:
        return ""
    lines = ["| field | type | default | what it does |", "|---|---|---|---|"]
    lines += [f"| `{row.name}` | {_type(row.type)} | {_default(row)} | {_in_cell(row.sentence)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _members(union: Any) -> str:
    """Every member of a tagged union, its options as a list in one cell."""
    lines = ["| type | options | what it does |", "|---|---|---|"]
    for member in field_rows.members(union).values():
        types = " or ".join(f'`"{tag}"`' for tag in field_rows.tags(member))
        options = "<br>".join(_option(row) for row in field_rows.rows(member, without_type=True))
        lines.append(f"| {types} | {options} | {_in_cell(field_rows.sentence(member))} |")
    return "\n".join(lines) + "\n"


def _option(row: Row) -> str:
    default = field_rows.REQUIRED if row.default == field_rows.REQUIRED else f"default {_default(row)}"
    return f"`{row.name}`: {_type(row.type)}, {default}. {_in_cell(row.sentence)}"


def _default(row: Row) -> str:
    if row.name == "agent":
        return f'`"{DEFAULT_AGENT}"`'
    return row.default if row.default == field_rows.REQUIRED else f"`{_in_cell(row.default)}`"


def _type(words: tuple[Word, ...]) -> str:
    return "".join(_dressed(word) for word in words)


def _dressed(word: Word) -> str:
    match word.role:
        case "value":
            return f"`{_in_cell(word.text)}`"
        case "name":
            return f"[{word.text}](#{ANCHORS.get(word.name, word.name)})"
        case _:
            return word.text


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
