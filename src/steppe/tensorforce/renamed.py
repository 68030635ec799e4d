"""Settings that only have another name now, and the meaning of null."""

from __future__ import annotations

from typing import Any

from steppe.tensorforce.translation import AgentTranslation

SAME_THING = {
    "action_values": "action",
    "actions_exploration": "exploration",
    "batch_size": "rollout_timesteps",
    "distributions": "distribution",
    "distributions_spec": "distribution",
    "double_q_model": "double",
    "entropy_regularization": "entropy_coefficient",
    "explorations_spec": "exploration",
    "first_update": "learning_starts",
    "gamma": "discount",
    "huber_loss": "huber",
    "likelihood_ratio_clipping": "clip",
    "preprocessing": "states_preprocessing",
    "repeat_update": "updates",
    "reward_preprocessing_spec": "reward_preprocessing",
    "states_preprocessing_spec": "states_preprocessing",
    "step_optimizer": "optimizer",
}
"""Old word -> the setting's name, for agents that have it and no setting of the old name."""
_ABSENCE: dict[str, Any] = {
    "clip": 1e9,
    "double": False,
    "entropy_coefficient": 0.0,
    "exploration": {"type": "constant"},
    "gae_lambda": 1.0,
    "huber": False,
    "variable_noise": 0.0,
}
"""The value that null stood for, if it is not the default."""


def rename(agent: AgentTranslation) -> None:
    """Renames the settings that the agent has under other names."""
    for old in agent.old(SAME_THING):
        if (new := SAME_THING[old]) in agent.fields:
            agent.put(new, agent.data.pop(old), old)
        elif agent.data[old] is None:
            del agent.data[old]


def settle_nulls(agent: AgentTranslation) -> None:
    """Writes out what null turned off; any other null means the default, today too."""
    for name, value in _ABSENCE.items():
        if name in agent.fields and name in agent.data and agent.data[name] is None:
            agent.data[name] = value
