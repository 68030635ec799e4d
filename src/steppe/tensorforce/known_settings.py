"""The settings that each agent has today: a word of TensorForce is translated if the agent has no setting of that name.

They are listed here because importing the agents would import JAX; a test compares both.
"""

from __future__ import annotations

_ALL = {"states_preprocessing", "reward_preprocessing"}
_LEARNING = _ALL | {
    *("discount", "learning_rate", "learning_rate_decay", "final_learning_rate", "max_gradient_norm", "optimizer")
}
_POLICY_GRADIENT = _LEARNING | {
    *("baseline", "baseline_learning_rate", "baseline_optimizer", "distribution", "entropy_coefficient"),
    *("gae_lambda", "horizon", "initial_log_std", "normalize_advantages", "rollout_episodes", "rollout_timesteps"),
    *("share_network", "value_coefficient", "variable_noise"),
}
_REPLAY = _LEARNING | {
    *("batch_size", "learning_starts", "memory", "n_step", "target_sync_frequency", "target_update_weight"),
    *("update_frequency", "updates"),
}
_Q_LEARNING = _REPLAY | {"double", "dueling", "exploration", "huber", "noisy", "quantiles"}
_ACTOR_AND_CRITICS = _REPLAY | {"critic_learning_rate", "critic_network", "critic_optimizer"}
_DEMONSTRATIONS = {
    *("demo_batch_size", "demo_memory_capacity", "demo_sampling_ratio", "demonstrations", "expert_margin"),
    *("n_step_weight", "pretraining_updates", "supervised_weight"),
}

AGENTS: dict[str, set[str]] = {
    "random": _ALL | {"horizon"},
    "constant": _ALL | {"horizon", "action"},
    "vpg": _POLICY_GRADIENT,
    "a2c": _POLICY_GRADIENT,
    "a3c": _POLICY_GRADIENT,
    "ppo": _POLICY_GRADIENT | {"clip", "epochs", "minibatches", "optimization_steps", "subsampling_fraction"},
    "trpo": _POLICY_GRADIENT | {"cg_damping", "cg_max_iterations", "ls_accept_ratio", "ls_max_iterations"},
    "impala": _POLICY_GRADIENT | {"ratio_clip"},
    "dqn": _Q_LEARNING,
    "ddqn": _Q_LEARNING,
    "dqn_nstep": _Q_LEARNING,
    "dqfd": _Q_LEARNING | _DEMONSTRATIONS,
    "qr_dqn": _Q_LEARNING,
    "pqn": _LEARNING | {"dueling", "epochs", "exploration", "horizon", "minibatches", "trace_lambda"},
    "ddpg": _ACTOR_AND_CRITICS | {"exploration"},
    "td3": _ACTOR_AND_CRITICS | {"exploration", "policy_delay", "target_noise", "target_noise_clip"},
    "sac": _ACTOR_AND_CRITICS | {"drifting_noise", "initial_temperature", "target_entropy", "temperature"},
    "naf": _REPLAY | {"double", "exploration", "huber"},
}
DEFAULTS: dict[str, dict[str, int]] = {
    **{name: {"batch_size": 128, "update_frequency": 2, "updates": 1} for name in ("dqn", "ddqn", "dqn_nstep", "dqfd")},
    "qr_dqn": {"batch_size": 128, "update_frequency": 4, "updates": 1},
    **{name: {"batch_size": 256, "update_frequency": 1, "updates": 1} for name in ("ddpg", "td3", "sac", "naf")},
}
"""The defaults used to convert TensorForce's numbers."""
