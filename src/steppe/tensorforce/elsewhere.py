"""Settings of other agents: dropped if their value has no effect, else refused with the reason."""

from __future__ import annotations

from typing import Any

from steppe.tensorforce.translation import AgentTranslation, TranslationError

SAYS_NOTHING: dict[str, tuple[Any, ...]] = {
    "entropy_regularization": (0, 0.0),
    "variable_noise": (0, 0.0),
    "huber_loss": (0, 0.0),
    "repeat_update": (1,),
    "first_update": (0,),
    "double_q_model": (False,),
}
_FOR_POLICIES = "ppo, vpg, trpo and their kind"


def explain(agent: AgentTranslation) -> None:
    """Drops values without effect; raises a TranslationError with the reason for others."""
    for word in agent.old(REASONS):
        value = agent.data.pop(word)
        if value is None or value in SAYS_NOTHING.get(word, ()):
            continue
        reason = "this agent does not learn; leave it out" if agent.family == "never" else REASONS[word](agent)
        raise TranslationError(f'"{word}" has no meaning here: {reason}', word)


def _noise(agent: AgentTranslation) -> str:
    instead = '"noisy": true learns its noise' if "noisy" in agent.fields else _exploring(agent)
    return f"noise on all parameters is for {_FOR_POLICIES}; {instead}"


def _entropy(agent: AgentTranslation) -> str:
    if "temperature" in agent.fields:
        return "this agent weighs entropy by its temperature; use temperature or target_entropy"
    return f"this agent has no random policy whose entropy could count; {_exploring(agent)}"


def _exploring(agent: AgentTranslation) -> str:
    return "use exploration" if "exploration" in agent.fields else "use temperature or target_entropy"


def _drawing(agent: AgentTranslation) -> str:
    instead = "temperature or target_entropy"
    if "entropy_coefficient" in agent.fields:
        instead = "entropy_regularization, or variable_noise"
    return f"this agent explores by drawing from its policy; use {instead}"


def _clipping(agent: AgentTranslation) -> str:
    is_trpo = "cg_damping" in agent.fields
    instead = "learning_rate bounds the steps here" if is_trpo else 'write "type": "ppo", or leave it out'
    return f"only ppo clips ratios; {instead}"


def _double(agent: AgentTranslation) -> str:
    if "temperature" in agent.fields or "policy_delay" in agent.fields:
        return "two critics, of which the lower counts, serve the same end; leave it out"
    return "it is for dqn and naf; leave it out"


def _advantages(agent: AgentTranslation) -> str:
    instead = next((name for name in ("trace_lambda", "n_step") if name in agent.fields), "")
    return f"advantages are estimated by {_FOR_POLICIES}; use {instead}"


def _repeated(agent: AgentTranslation) -> str:
    return 'use epochs, or {"type": "multi_step"} as optimizer'


def _always(reason: str) -> Any:
    return lambda agent: reason


_BASELINE = _always(f"a baseline is for {_FOR_POLICIES}; this agent learns values by itself")
_TARGET = _always("this agent has no target network; leave it out")
_ROLLOUT = _always("this agent learns from what it just saw, whenever a rollout is full; leave it out")
REASONS: dict[str, Any] = {
    "actions_exploration": _drawing,
    "explorations_spec": _drawing,
    "exploration": _drawing,
    "baseline": _BASELINE,
    "baseline_mode": _BASELINE,
    "baseline_optimizer": _BASELINE,
    "critic_network": _always("this agent has no critic; baseline gives the value network of those that have one"),
    "critic_optimizer": _always("this agent has no critic; leave it out"),
    "distributions": _always("this agent does not choose its distribution; leave it out"),
    "distributions_spec": _always("this agent does not choose its distribution; leave it out"),
    "double_q_model": _double,
    "entropy_regularization": _entropy,
    "first_update": _ROLLOUT,
    "gae_lambda": _advantages,
    "huber_loss": _always("errors count squared here; max_gradient_norm bounds what large ones do"),
    "likelihood_ratio_clipping": _clipping,
    "optimization_steps": _always('it is for ppo; write "type": "ppo", or use {"type": "multi_step"} as optimizer'),
    "repeat_update": _repeated,
    "step_optimizer": _always("this agent has no optimizer; leave it out"),
    "subsampling_fraction": _always(
        'it is for ppo; write "type": "ppo", or use {"type": "subsampling_step"} as optimizer'
    ),
    "target_sync_frequency": _TARGET,
    "target_update_weight": _TARGET,
    "variable_noise": _noise,
}
