"""docs/agents.md names every agent, and its examples are valid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from steppe import agents
from steppe.spec_files import read_agent, read_experiment

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
EXAMPLES = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)]


def test_the_table_lists_every_agent() -> None:
    table = PAGE.partition("## Which one")[2].partition("\n## ")[0]
    assert set(re.findall(r"\[`(\w+)`\]", table)) == set(agents.names())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(list(example)))
def test_examples_are_valid(example: dict[str, Any]) -> None:
    spec = read_agent(example) if "type" in example else None
    if spec is None:
        spec = read_experiment({"name": "x", **example}).agent
    assert isinstance(spec.settings_as(agents.agent_class(spec).Settings), agents.agent_class(spec).Settings)


TENSORFORCE_NAMES = {
    "optimizer": ("dqn", {"type": "adam", "learning_rate": 0.5}, {"learning_rate": 0.5}),
    "step_optimizer": ("ppo", {"type": "adam", "learning_rate": 0.5}, {"learning_rate": 0.5}),
    "update_mode": (
        "dqn",
        {"unit": "timesteps", "batch_size": 64, "frequency": 4},
        {"batch_size": 64, "update_frequency": 4},
    ),
    "actions_exploration": ("dqn", {"type": "constant"}, {"exploration": "constant"}),
    "likelihood_ratio_clipping": ("ppo", 0.1, {"clip": 0.1}),
    "entropy_regularization": ("ppo", None, {"entropy_coefficient": 0.0}),
    "gamma": ("ppo", 0.5, {"discount": 0.5}),
    "double_q_model": ("dqn", False, {"double": False}),
    "huber_loss": ("dqn", None, {"huber": False}),
    "baseline_mode": ("ppo", "network", {"share_network": True}),
    "distributions": ("ppo", "beta", {"distribution": "beta"}),
}


@pytest.mark.parametrize("name", TENSORFORCE_NAMES)
def test_tensorforces_settings_translate_as_the_page_says(name: str) -> None:
    agent, value, today = TENSORFORCE_NAMES[name]
    settings = agents.settings_class(agent)
    assert name in PAGE
    assert read_agent({"type": agent, name: value}).settings_as(settings) == settings.model_validate(today)
