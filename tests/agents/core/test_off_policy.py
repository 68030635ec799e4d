"""Common parts of agents with a replay memory: target networks, memory settings, and the start of learning."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from steppe.errors import SpecError, UserError
from steppe.specs.spaces import Box, Discrete

FOUR = Discrete(4)
BOUNDED = Box((2,), (-1.0,), (1.0,))
SPACES = {"dqn": FOUR, "naf": BOUNDED, "ddpg": BOUNDED, "sac": BOUNDED}


@pytest.fixture(scope="module")
def following(make_agent, random_transitions):
    """(frequency, weight) -> (before, after) of each of seven updates of a dqn."""

    def follow(frequency, weight):
        agent = make_agent("dqn", FOUR, target_sync_frequency=frequency, target_update_weight=weight)
        state = agent.init(jax.random.key(0))
        np.testing.assert_array_equal(state.target, state.params)
        update, states = jax.jit(agent.update), [state]
        for count in range(7):
            states.append(update(states[-1], random_transitions(FOUR, seed=count))[0])
        return itertools.pairwise(states)

    return follow


@pytest.mark.parametrize(("frequency", "weight"), [(3, 1.0), (3, 0.25), (1, 0.1)])
def test_targets_move_as_often_and_as_far_as_set(following, frequency, weight):
    for count, (before, after) in enumerate(following(frequency, weight), start=1):
        assert after.updates == count
        if count % frequency:
            np.testing.assert_array_equal(after.target, before.target)
            continue
        moved = before.target + weight * (np.asarray(after.params) - np.asarray(before.target))
        np.testing.assert_allclose(after.target, moved, rtol=1e-5, atol=1e-7)
        assert np.any(moved != before.target)


@pytest.mark.parametrize("agent", ["naf", "ddpg", "sac"])
def test_targets_of_continuous_agents_follow_slowly(make_agent, shaken, random_transitions, agent):
    made = make_agent(agent, BOUNDED, target_update_weight=0.2, batch_size=12)
    state = shaken(made)
    after, _ = jax.jit(made.update)(state, random_transitions(BOUNDED))
    expected = state.target + 0.2 * (np.asarray(after.params) - state.target)
    np.testing.assert_allclose(after.target, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"type": "clipped_step", "clipping_value": 1e-4, "optimizer": "adam"},
        {"type": "optimized_step", "ls_max_iterations": 2, "optimizer": "gradient_descent", "learning_rate": 1e4},
    ],
    ids=["clipped_step", "optimized_step"],
)
def test_targets_go_to_the_parameters_that_were_really_reached(make_agent, shaken, random_transitions, optimizer):
    agent = make_agent(
        "dqn", FOUR, optimizer=optimizer, target_sync_frequency=1, target_update_weight=1.0, max_gradient_norm=None
    )
    after, _ = jax.jit(agent.update)(shaken(agent), random_transitions(FOUR))
    np.testing.assert_allclose(after.target, after.params, atol=1e-7)


def test_several_updates_each_time_move_the_targets_each_time(make_agent, shaken, random_transitions):
    multi = {"type": "multi_step", "num_steps": 3, "optimizer": "gradient_descent"}
    agent = make_agent("dqn", FOUR, optimizer=multi, target_sync_frequency=2, target_update_weight=1.0)
    assert agent.updates_per_rollout == 3
    state = shaken(agent)
    after, metrics = jax.jit(agent.update)(state, random_transitions(FOUR))
    assert after.updates == 3
    assert metrics["priorities"].shape == (12,)
    # The target was copied after the second of the three steps.
    assert np.any(np.asarray(after.target) != np.asarray(after.params))
    assert np.any(np.asarray(after.target) != np.asarray(state.target))


def test_a_memory_smaller_than_a_batch_is_refused(make_agent):
    with pytest.raises(SpecError, match=r"memory\.capacity 32 is less than batch_size 64"):
        make_agent("dqn", FOUR, batch_size=64, memory={"capacity": 32})


@pytest.mark.parametrize("agent", SPACES)
def test_the_memory_is_built_from_the_settings(make_agent, agent):
    memory = {"type": "prioritized_replay", "capacity": 96, "priority_exponent": 0.5, "importance_exponent": 0.3}
    settings = {"n_step": 4, "discount": 0.8, "update_frequency": 2, "batch_size": 8}
    made = make_agent(agent, SPACES[agent], num_envs=3, memory=memory, **settings)
    assert made.horizon == 2
    replay = made.memory
    assert (replay.capacity, replay.num_envs, replay.horizon, replay.n_step) == (96, 3, 2, 4)
    assert (replay.discount, replay.prioritized) == (0.8, True)
    assert (replay.priority_exponent, replay.importance_exponent) == (0.5, 0.3)


@pytest.mark.parametrize(
    ("memory", "type", "exponent"),
    [
        ("replay", "replay", 0.6),
        ({"type": "replay", "capacity": 5000}, "replay", 0.6),
        ("prioritized_replay", "prioritized_replay", 0.6),
        ({"type": "naive_prioritized_replay"}, "naive_prioritized_replay", 0.6),
        ({"type": "prioritized_replay", "prioritization_weight": 0.3}, "prioritized_replay", 0.3),
        ({"type": "replay", "include_next_states": True}, "replay", 0.6),
    ],
)
def test_memories_may_be_written_as_tensorforce_wrote_them(checked, make_agent, memory, type, exponent):
    given = checked("dqn", memory=memory).memory
    assert (given.type, given.priority_exponent) == (type, exponent)
    made = make_agent("dqn", FOUR, memory=memory)
    assert made.memory.prioritized == (type != "replay")


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        ("latest", 'memory "latest" keeps what was just seen, as ppo and vpg do; use "replay" here'),
        ({"type": "latest", "capacity": 9}, 'memory "latest" keeps what was just seen'),
        ({"type": "prioritised_replay"}, 'did you mean "prioritized_replay"'),
        ({"capasity": 9}, 'unknown field "capasity".*; did you mean "capacity"'),
        ({"include_next_states": False}, "include_next_states must be true: the value of what follows is what is"),
        (
            {"type": "prioritized_replay", "prioritization_weight": 0.3, "priority_exponent": 0.4},
            "priority_exponent.*prioritization_weight|prioritization_weight.*priority_exponent",
        ),
        ({"type": "replay", "priority_exponent": 0.3}, "priority_exponent"),
        ({"type": "replay", "importance_exponent": 0.3}, "importance_exponent"),
    ],
)
def test_memories_that_cannot_be_had_are_explained(checked, memory, reason):
    with pytest.raises(SpecError, match=reason):
        checked("dqn", memory=memory)


def test_a_part_of_a_batch_has_no_priorities_for_the_rest(checked):
    for optimizer in (
        {"type": "subsampling_step", "optimizer": "adam"},
        {"type": "multi_step", "optimizer": {"type": "subsampling_step", "optimizer": "adam"}},
    ):
        assert checked("dqn", optimizer=optimizer).optimizer.type == optimizer["type"]
        with pytest.raises(SpecError, match="subsampling_step leaves transitions without an error"):
            checked("dqn", optimizer=optimizer, memory="prioritized_replay")


@pytest.mark.parametrize("agent", SPACES)
def test_natural_gradients_are_refused(checked, agent):
    sentence = "natural_gradient measures steps of a policy's probabilities, which this agent has not$"
    with pytest.raises(SpecError, match=sentence):
        checked(agent, optimizer="natural_gradient")


@pytest.mark.parametrize(
    ("settings", "num_envs", "expected"),
    [
        ({"learning_starts": 100, "batch_size": 8}, 2, 100),
        ({"learning_starts": 0, "batch_size": 8}, 2, 8),
        # The agent must not wait for more timesteps than the memory can hold.
        ({"learning_starts": 1000, "batch_size": 8, "memory": {"capacity": 64}, "update_frequency": 4}, 2, 64),
    ],
)
def test_learning_starts_when_there_is_enough(make_agent, settings, num_envs, expected):
    assert make_agent("dqn", FOUR, num_envs=num_envs, **settings).first_update == expected


def test_a_falling_learning_rate_ends_with_the_last_update(make_agent, random_transitions):
    agent = make_agent(
        "dqn",
        FOUR,
        learning_rate_decay="linear",
        learning_starts=40,
        batch_size=12,
        update_frequency=4,
        num_envs=2,
        updates=2,
        optimizer="gradient_descent",
        context={"total_timesteps": 64},
    )
    # 64 timesteps are 8 rollouts of 8; the fifth reaches the 40 that are required, so 4 rollouts learn, twice each.
    total = 4 * 2
    state = agent.init(jax.random.key(0))
    update = jax.jit(agent.update)
    for _ in range(total):
        before = state
        state, _ = update(state, random_transitions(FOUR))
        assert np.any(np.asarray(state.params) != np.asarray(before.params))
    after, _ = update(state, random_transitions(FOUR))
    np.testing.assert_array_equal(after.params, state.params)


def test_importance_weights_weigh_each_transition(make_agent, shaken, random_transitions):
    agent = make_agent("dqn", FOUR)
    state, batch = shaken(agent), random_transitions(FOUR)
    gradients = jax.jit(agent.gradients)
    only = np.zeros(12, np.float32)
    only[3] = 1.0
    alone = gradients(state, batch._replace(weights=only))[0]
    repeated = jax.tree.map(lambda leaf: np.repeat(leaf[3:4], 12, 0), batch)._replace(weights=np.ones(12, np.float32))
    np.testing.assert_allclose(12 * alone, gradients(state, repeated)[0], rtol=1e-3, atol=1e-5)


def test_targets_follow_however_many_steps_a_wrapper_takes_at_once(make_agent, shaken, random_transitions):
    several = {"type": "multi_step", "num_steps": 7, "optimizer": "gradient_descent"}
    clipped = {"type": "clipped_step", "clipping_value": 0.01, "optimizer": several}
    agent = make_agent("dqn", FOUR, optimizer=clipped, target_sync_frequency=10, target_update_weight=1.0)
    state, update = shaken(agent), jax.jit(agent.update)
    moved = []
    for _ in range(6):
        before, (state, _) = state, update(state, random_transitions(FOUR))
        if np.any(np.asarray(state.target) != np.asarray(before.target)):
            moved.append(int(state.updates))
    # Each of these calls of seven updates contains a multiple of ten.
    assert moved == [14, 21, 35, 42]


def test_importance_weights_grow_stronger_until_the_end(make_agent, random_transitions, shaken):
    memory = {"type": "prioritized_replay", "importance_exponent": 0.4, "final_importance_exponent": 1.0}
    agent = make_agent("dqn", FOUR, memory=memory, context={"total_timesteps": 20_000})
    batch = random_transitions(FOUR)._replace(weights=np.linspace(0.1, 1.0, 12, dtype=np.float32))
    state, total = shaken(agent), agent.total_updates()
    for done, exponent in ((0, 0.4), (total // 2, 0.7), (total, 1.0), (2 * total, 1.0)):
        corrected = agent.prepare(state._replace(updates=np.int32(done)), batch)
        np.testing.assert_allclose(corrected.weights, batch.weights ** (exponent / 0.4), rtol=1e-2)
    endless = make_agent("dqn", FOUR, memory=memory)
    with pytest.raises(UserError, match="final_importance_exponent needs total_timesteps"):
        endless.prepare(state, batch)
