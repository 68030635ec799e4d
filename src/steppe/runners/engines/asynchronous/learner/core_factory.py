"""Builds the learning core of an experiment: its agent, made for batches of many workers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from steppe.agents import agent_class
from steppe.agents.core.optimizers import steps_of
from steppe.errors import UserError
from steppe.runners import keys
from steppe.runners.engines.asynchronous.cores._base import Core
from steppe.runners.engines.asynchronous.cores.replay_core import BLOCK, ReplayCore
from steppe.runners.engines.asynchronous.cores.stacking_core import StackingCore
from steppe.runners.engines.asynchronous.wire.board import Spaces
from steppe.runners.engines.asynchronous.wire.task import LONGEST_EPISODE, TIMESTEPS, Task
from steppe.runners.setup import num_envs_of, preprocessing_of, situation_of
from steppe.specs.experiment import ExperimentSpec

OFF_POLICY = ("impala",)
"""Agents that learn from trajectories and correct for the age of the policy that acted."""


def check_agent(spec: ExperimentSpec) -> None:
    """Raises a UserError for agents that do not learn, or cannot learn from data of older policies."""
    algorithm = agent_class(spec.agent)
    if algorithm.experience == "none":
        raise UserError(
            f'agent "{algorithm.type}" learns nothing, so run mode "async" has nothing to do; use run mode "single"'
        )
    if algorithm.experience == "trajectories" and algorithm.type not in OFF_POLICY:
        raise UserError(
            f'agent "{algorithm.type}" learns from what its newest policy does, but workers of run mode "async" act '
            'with older ones; use "impala", "dqn" or "sac", or run mode "distributed"'
        )
    if spec.agent.settings_as(algorithm.Settings).counts_episodes:
        raise UserError(
            "rollout_episodes (update_mode in episodes) ends rollouts at any timestep, but workers of run mode "
            '"async" send trajectories of one length; give agent.horizon'
        )


def make_core(spec: ExperimentSpec, spaces: Spaces, episode_limit: int | None) -> Core:
    """The agent with its memory, for environments of these spaces."""
    check_agent(spec)
    algorithm = agent_class(spec.agent)
    preprocessing = preprocessing_of(spec, spaces[0])
    shown = spaces[0] if preprocessing is None else preprocessing.space
    seen = SimpleNamespace(observation_space=shown, action_space=spaces[1], max_episode_steps=episode_limit)
    settings: Any = spec.agent.settings_as(algorithm.Settings)
    wishes = spec.asynchronous
    if algorithm.experience == "transitions":
        ratio = _ratio(spec, settings)
        context = situation_of(spec, seen, 1, 1, preprocessing)
        if ratio is None:
            # The total number of updates is unknown, so a learning rate cannot fall over it.
            context = replace(context, total_timesteps=None)
        calls = 1 if ratio is None else max(1, round(ratio * BLOCK / steps_of(settings.optimizer)))
        agent: Any = algorithm(settings.model_copy(update={"update_frequency": BLOCK, "updates": calls}), context)
        return ReplayCore(agent, _task(spec, agent), spaces, ratio)
    width = wishes.trajectories_per_update or num_envs_of(spec)
    agent = algorithm(settings, situation_of(spec, seen, width, 1, preprocessing))
    if not agent.acts_in_numpy:
        raise UserError(
            f'the value network of agent "{agent.type}" remembers what workers of run mode "async" do not send; set '
            "agent.share_network, or use a network without recurrent layers"
        )
    return StackingCore(agent, _task(spec, agent), spaces)


def _ratio(spec: ExperimentSpec, settings: Any) -> float | None:
    """Updates for each timestep; None for as many as possible."""
    wanted = spec.asynchronous.update_to_data
    if wanted == "max":
        return None
    if wanted is not None:
        return wanted
    return settings.updates * steps_of(settings.optimizer) / (settings.update_frequency * num_envs_of(spec))


def _task(spec: ExperimentSpec, agent: Any) -> Task:
    """The task of the workers of this agent."""
    wishes = spec.asynchronous
    process = agent.noise_process
    stages = agent.reward_preprocessing
    keeps: tuple[str, ...] = ("running_returns",) if agent.context.normalize_rewards else ()
    least, most, rows = _batch_size(spec)
    if agent.experience == "trajectories":
        keeps, rows = (*keeps, "outputs", *(("internals",) if agent.is_recurrent else ())), agent.horizon
    preprocessing = agent.context.preprocessing
    state = agent.init(keys.make(0))
    return Task(
        policy=agent.actor(state).description.to_json(),
        preprocessing=None if preprocessing is None else preprocessing.to_json(),
        rewards=None if stages is None or stages.spans_rollout else stages.stages.model_dump(mode="json"),
        noise=None if process is None else process.model_dump(mode="json"),
        discount=agent.discount,
        is_greedy=spec.deterministic,
        keeps=keeps,
        least=least,
        most=most,
        rows=rows,
        # Workers only have such a policy with noise in its parameters.
        evaluation_share=0.0 if agent.perturbs_parameters else wishes.evaluation_share,
        max_timesteps=spec.max_timesteps_per_episode,
        repeat_actions=spec.repeat_actions,
        patience=wishes.patience,
    )


def _batch_size(spec: ExperimentSpec) -> tuple[int, int, int | None]:
    """(the fewest timesteps of a batch, the most, the fixed number for each environment or None)."""
    wanted = spec.asynchronous.batch_timesteps
    if wanted == "episode":
        return 1, LONGEST_EPISODE, None
    return wanted or TIMESTEPS, wanted or TIMESTEPS, None
