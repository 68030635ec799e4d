"""Settings that only have another name now, and what null meant."""

from __future__ import annotations

from typing import Any, get_args

from steppe.tensorforce.translation import Reading

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
"""What null meant, where it is not the default."""


def rename(reading: Reading) -> None:
    """Old names of settings that the agent has."""
    for old in reading.old(SAME_THING):
        if (new := SAME_THING[old]) in reading.fields:
            reading.put(new, reading.data.pop(old), old)
        elif reading.data[old] is None:
            del reading.data[old]


def settle_nulls(reading: Reading) -> None:
    """TensorForce wrote null for what was not there, and for its defaults."""
    data, fields = reading.data, reading.fields
    for name in [name for name in data if name in fields and data[name] is None]:
        if name in _ABSENCE:
            data[name] = _ABSENCE[name]
        elif type(None) not in get_args(fields[name].annotation):
            del data[name]
