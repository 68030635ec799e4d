"""Batches arrive unchanged; all other messages are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.errors import UserError
from steppe.net.messagepack import Malformed, pack, unpack
from steppe.policies.description import PolicyDescription
from steppe.runners.engines.asynchronous.wire.batches import BatchFormat, from_message, to_message
from steppe.runners.engines.asynchronous.wire.task import Task
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

VECTOR, IMAGE = Box((3,)), Box((4, 4, 1), (0.0,), (255.0,), "uint8")
PUSH = Box((2,), (-1.0,), (1.0,))


def policy(observation, action, kind, *layers):
    layers = layers or ({"type": "dense", "size": 4},)
    return PolicyDescription("a", "e", 0, observation, action, NetworkSpec(list(layers)), {"kind": kind}).to_json()


CASES = {
    "vector": (VECTOR, PUSH, Task(rows=None)),
    "image": (IMAGE, Discrete(3), Task()),
    "numbers": (Discrete(5, start=2), MultiDiscrete((2, 3)), Task(keeps=("running_returns",))),
    "gaussian": (VECTOR, PUSH, Task(policy=policy(VECTOR, PUSH, "gaussian"), keeps=("outputs",), rows=6)),
    "recurrent": (
        VECTOR,
        Discrete(3),
        Task(
            policy=policy(VECTOR, Discrete(3), "categorical", {"type": "lstm", "size": 5}),
            keeps=("outputs", "internals"),
            rows=6,
        ),
    ),
}


def made_up(case, rows=6, environments=2, seed=0):
    """(format, batch) with random values of the spaces."""
    observation, action, task = CASES[case]
    form, rng = BatchFormat(task, observation, action), np.random.default_rng(seed)
    batch = form.allocate(rows, environments)
    ended = rng.random((2, rows, environments)) < 0.3
    batch.terminated[:], batch.truncated[:] = ended[0], ended[1] & ~ended[0]

    def fill(rows, following):
        values = rng.integers(0, 2, (len(rows) + 1, *rows.shape[1:]))
        if rows.dtype == np.float32:
            values = rng.normal(size=values.shape)
        values = values + getattr(form.seen, "start", 0) * (rows is batch.observations)
        rows[:], following[:] = values[:-1], values[1:]
        # At the end of an episode the successor is not the next row.
        following[batch.ended] = np.flip(following, 0)[batch.ended]

    fill(batch.observations, batch.next_observations)
    for name in batch.internals:
        fill(batch.internals[name], batch.next_internals[name])
    batch.actions[:] = rng.integers(0, 2, batch.actions.shape)
    batch.rewards[:] = rng.normal(size=batch.rewards.shape)
    for name in form.extras:
        getattr(batch, name)[:] = rng.normal(size=getattr(batch, name).shape)
    if form.has_log_std:
        batch.log_std = np.array([0.1, -0.2], np.float32)
    batch.returns, batch.lengths, batch.evaluations = [1.5, -2.0], [3, 4], [(7.0, 9)]
    batch.version, batch.sequence = 17, 3
    return form, batch


def sent(batch):
    """The message as it arrives."""
    return unpack(pack(to_message(batch)))


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_arrives_as_it_was_sent(case, rows):
    form, batch = made_up(case, 6 if CASES[case][2].rows else rows)
    arrived = from_message(sent(batch), form, 2)
    for name, value in dataclasses.asdict(batch).items():
        got = getattr(arrived, name)
        if isinstance(value, dict):
            assert value.keys() == got.keys()
            for key in value:
                np.testing.assert_array_equal(got[key], value[key])
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(got, value)
            assert got.dtype == value.dtype
        else:
            assert got == value, name


def test_successors_are_sent_only_if_they_are_not_the_next_row():
    _, batch = made_up("image", rows=6)
    batch.terminated[:], batch.truncated[:] = False, False
    batch.next_observations[:-1] = batch.observations[1:]
    assert sent(batch)["following"]["shape"] == [2, 4, 4, 1]


WRONG = {
    "too many timesteps": {"timesteps": 65},
    "no timesteps": {"timesteps": 0},
    "a missing array": {"rewards": None},
    "an array of another shape": {"rewards": {"dtype": "float32", "shape": [6, 3], "data": b"\0" * 72}},
    "fewer bytes than it says": {"rewards": {"dtype": "float32", "shape": [6, 2], "data": b"\0" * 44}},
    "too few successors": {"following": {"dtype": "float32", "shape": [1, 3], "data": b"\0" * 12}},
    "NaN": {"rewards": {"dtype": "float32", "shape": [6, 2], "data": np.full((6, 2), np.nan, np.float32).tobytes()}},
    "a return that is text": {"returns": ["1.5", -2.0]},
    "an infinite return": {"returns": [float("inf"), -2.0]},
    "fewer lengths than returns": {"lengths": [3]},
    "evaluations without lengths": {"evaluations": [[1.0]]},
    "a version that is text": {"version": "17"},
    "a sequence that is no number": {"sequence": True},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_anything_else_is_refused(wrong):
    form, batch = made_up("vector")
    message = sent(batch)
    from_message(message, form, 2)
    with pytest.raises(Malformed):
        from_message(message | WRONG[wrong], form, 2)


def test_choices_that_do_not_exist_are_refused():
    form, batch = made_up("numbers")
    batch.actions[2, 1] = [0, 3]
    with pytest.raises(Malformed, match="choice that does not exist"):
        from_message(sent(batch), form, 2)


def test_an_episode_cannot_end_in_two_ways():
    form, batch = made_up("vector")
    batch.terminated[:], batch.truncated[:] = True, True
    with pytest.raises(Malformed, match="terminated and truncated"):
        from_message(sent(batch), form, 2)


def test_trajectories_have_their_one_length():
    form, batch = made_up("gaussian", rows=5)
    with pytest.raises(Malformed, match="5 timesteps"):
        from_message(sent(batch), form, 2)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["timesteps", "observations", "following", "returns", "evaluations", "version", "actions"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text() | st.binary(max_size=99),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["dtype", "shape", "data"]), inner, max_size=3)
            ),
            max_leaves=6,
        ),
    )
)
def test_no_message_does_more_than_be_refused(fields):
    form, batch = made_up("vector")
    message = sent(batch) | fields
    try:
        from_message(message, form, 2)
    except Malformed:
        return
    assert not fields or all(message[name] == fields[name] for name in fields)


def test_batches_that_no_message_can_hold_are_refused_with_the_way_out():
    form = BatchFormat(Task(rows=1000), Box((512, 512, 3), (0.0,), (255.0,), "uint8"), Discrete(2))
    with pytest.raises(UserError, match="lower batch_timesteps or num_envs"):
        form.largest(64)


def test_the_largest_message_is_large_enough():
    for case in CASES:
        form, batch = made_up(case, rows=6, environments=2)
        batch.terminated[:], batch.truncated[:] = True, False
        full = BatchFormat(dataclasses.replace(CASES[case][2], rows=6), *CASES[case][:2])
        assert len(pack(to_message(batch))) <= full.largest(2), case
        assert form.largest(1) > 0


ODD_FIGURES = {
    "a length beyond int32": {"lengths": [2**31, 4]},
    "a huge length": {"lengths": [2**64 - 1, 4]},
    "a length of zero": {"lengths": [0, 4]},
    "a negative length": {"lengths": [-5, 4]},
    "a length that is no whole number": {"lengths": [3.5, 4]},
    "a length that is true": {"lengths": [True, 4]},
    "a length that is text": {"lengths": ["3", 4]},
    "a return whose mean overflows": {"returns": [1e308, -2.0]},
    "a return that no float32 holds": {"returns": [-1e39, -2.0]},
    "a return that is NaN": {"returns": [float("nan"), -2.0]},
    "a whole return that no float holds": {"returns": [2**64 - 1, 10**400]},
    "a return that is true": {"returns": [True, -2.0]},
    "more episodes than ended": {"returns": [1.0] * 13, "lengths": [1] * 13},
    "an evaluation of length zero": {"evaluations": [[7.0, 0]]},
    "an evaluation beyond int32": {"evaluations": [[7.0, 2**31]]},
    "an evaluation whose mean overflows": {"evaluations": [[1e308, 9]]},
    "an evaluation that is NaN": {"evaluations": [[float("nan"), 9]]},
    "a version beyond int64": {"version": 2**63},
    "a sequence beyond int64": {"sequence": 2**63},
}


@pytest.mark.parametrize("odd", ODD_FIGURES)
def test_figures_out_of_bounds_are_refused(odd):
    form, batch = made_up("vector")
    message = sent(batch)
    with pytest.raises(Malformed):
        from_message(message | ODD_FIGURES[odd], form, 2)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38, -3e38])
@pytest.mark.parametrize("name", ["observations", "next_observations", "rewards", "actions"])
def test_numbers_that_overflow_when_squared_are_refused(name, value):
    form, batch = made_up("vector")
    getattr(batch, name)[-1, 0] = value
    with pytest.raises(Malformed, match="NaN, or not within 1e\\+19 of zero"):
        from_message(sent(batch), form, 2)


def test_the_largest_figures_that_are_taken_have_a_finite_mean():
    form, batch = made_up("vector")
    batch.returns, batch.lengths, batch.evaluations = [1e35, -1e35], [1, 2**31 - 1], [(1e35, 2**31 - 1)]
    taken = from_message(sent(batch), form, 2)
    assert (taken.returns, taken.lengths, taken.evaluations) == (batch.returns, batch.lengths, batch.evaluations)
    assert np.isfinite(np.full(100, 1e35, np.float32).sum())
