from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from steppe.envs.spaces import action_crossing, bulk_writer, observation_crossing, zeros
from steppe.errors import UserError
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, from_json, to_json

NESTED = spaces.Dict(
    {
        "b": spaces.Box(-1.0, np.array([[1.0, 2.0], [3.0, np.inf]]), (2, 2), np.float64),
        "a": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Dict({"x": spaces.MultiBinary([2, 2])}))),
        "c": spaces.MultiDiscrete([[2, 3], [4, 1]]),
        "d": spaces.Box(0, 255, (2, 1, 3), np.uint8),
        "e": spaces.Box(-2.0, 2.0, (), np.float32),
    }
)


@pytest.mark.parametrize("space", [NESTED, spaces.Tuple((spaces.Discrete(2), NESTED))])
def test_nested_observations_are_flattened_as_gymnasium_flattens_them(space: spaces.Space) -> None:
    ours, write = observation_crossing(space, "nested")
    flat = spaces.flatten_space(space)
    assert isinstance(ours, Box)
    assert (ours.shape, ours.dtype) == (flat.shape, "float32")
    np.testing.assert_array_equal(ours.bounds(), (flat.low, flat.high))
    space.seed(0)
    rows = np.full((2, *ours.shape), np.nan, np.float32)
    for _ in range(50):
        sample = space.sample()
        write(sample, rows, 1)
        np.testing.assert_array_equal(rows[1], spaces.flatten(space, sample).astype(np.float32))
    assert np.all(np.isnan(rows[0]))


def test_the_parts_of_a_nested_observation_keep_their_names_and_places() -> None:
    ours, write = observation_crossing(NESTED, "nested")
    assert isinstance(ours, Box)
    parts = {part.name: part for part in ours.parts}
    assert [part.start for part in ours.parts] == np.cumsum([0, *(part.size for part in ours.parts)])[:-1].tolist()
    assert {name: part.space for name, part in parts.items()} == {
        "a/0": Discrete(3, -1),
        "a/1/x": Box((2, 2), (0.0,), (1.0,), "int32"),
        "b": Box((2, 2), (-1.0,), (1.0, 2.0, 3.0, float("inf"))),
        "c": MultiDiscrete((2, 3, 4, 1)),
        "d": Box((2, 1, 3), (0.0,), (255.0,), "uint8"),
        "e": Box((1,), (-2.0,), (2.0,)),
    }
    assert [name for name, part in parts.items() if part.is_bytes] == ["d"]
    assert sum(part.size for part in ours.parts) == ours.size
    NESTED.seed(0)
    sample, rows = NESTED.sample(), zeros(ours, 1)
    write(sample, rows, 0)

    def read(name: str) -> np.ndarray:
        return rows[0, parts[name].start : parts[name].start + parts[name].size]

    np.testing.assert_array_equal(read("d"), sample["d"].ravel())
    np.testing.assert_array_equal(read("a/1/x"), sample["a"][1]["x"].ravel())
    assert int(read("a/0").argmax()) - 1 == sample["a"][0]
    assert from_json(to_json(ours)) == ours


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1.0, 1.0, (3,), np.float64), Box((3,), (-1.0,), (1.0,))),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), Box((4, 4, 3), (0.0,), (255.0,), "uint8")),
        (spaces.Box(0, 9, (2,), np.int64), Box((2,), (0.0,), (9.0,))),
        (spaces.Box(0.0, 1.0, (), np.float32), Box((1,), (0.0,), (1.0,))),
        (spaces.Discrete(4, start=2), Discrete(4, 2)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), MultiDiscrete((2, 3, 4, 5))),
        (spaces.MultiBinary([2, 2]), MultiDiscrete((2, 2, 2, 2))),
    ],
)
def test_observations_of_every_kind_are_kept_unchanged(space: spaces.Space, expected) -> None:
    ours, write = observation_crossing(space, "kind")
    assert ours == expected
    space.seed(1)
    samples = [space.sample() for _ in range(4)]
    rows, bulk = zeros(ours, 4), zeros(ours, 4)
    for i, sample in enumerate(samples):
        write(sample, rows, i)
    bulk_writer(space, write)(samples, bulk)
    expected_rows = np.stack(samples).reshape(4, -1).astype(ours.dtype)
    np.testing.assert_array_equal(rows.reshape(4, -1), expected_rows)
    np.testing.assert_array_equal(rows, bulk)


@pytest.mark.parametrize("wrong", [np.zeros(1, np.float32), np.zeros((1, 3), np.float32), np.zeros(4), 0.0])
def test_a_wrong_shape_is_never_broadcast(wrong) -> None:
    space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    ours, write = observation_crossing(space, "shape")
    with pytest.raises(ValueError, match="where its space says"):
        write(wrong, zeros(ours, 2), 0)
    with pytest.raises(ValueError):
        bulk_writer(space, write)([np.zeros(3), wrong], zeros(ours, 2))


def test_actions_reach_the_environment_as_members_of_its_space() -> None:
    rng = np.random.default_rng(0)
    for space, actions in [
        (spaces.Discrete(4, start=-3), rng.integers(0, 4, 5)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), rng.integers(0, 2, (5, 4))),
        (spaces.MultiBinary(3), rng.integers(0, 2, (5, 3))),
        (spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 2.0]), dtype=np.float64), rng.normal(0, 5, (5, 2))),
        (spaces.Box(0, 9, (2,), np.int64), rng.uniform(-20, 20, (5, 2))),
        (spaces.Box(-1.0, 1.0, (2, 3), np.float32), rng.normal(0, 5, (5, 6))),
        (spaces.Box(-1.0, 1.0, (), np.float32), rng.normal(0, 5, (5, 1))),
    ]:
        ours, offer = action_crossing(space, "actions")
        offered = offer(actions if isinstance(ours, Box) else actions.astype(ours.dtype))
        assert len(offered) == 5
        assert all(space.contains(np.asarray(action)) for action in offered)
    assert action_crossing(spaces.Discrete(4, start=-3), "a")[1](np.array([0, 3])) == [-3, 0]


def test_continuous_actions_are_clipped_to_their_bounds() -> None:
    _, offer = action_crossing(spaces.Box(np.float32([-1, 0]), np.float32([1, 2])), "box")
    given = np.array([[-5.0, 5.0], [0.5, 0.5]], np.float32)
    np.testing.assert_array_equal(offer(given), [[-1.0, 2.0], [0.5, 0.5]])
    np.testing.assert_array_equal(given[0], [-5.0, 5.0])


def test_unsupported_spaces_are_refused_by_name() -> None:
    for space in (spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Dict({"a": spaces.Text(3)})):
        with pytest.raises(UserError, match=r'environment "odd" observes a (Text|Sequence) space.*wrap it'):
            observation_crossing(space, "odd")
    for space in (NESTED, spaces.Text(3)):
        with pytest.raises(UserError, match=r'environment "odd" takes actions from a (Dict|Text) space.*wrap it'):
            action_crossing(space, "odd")
    with pytest.raises(UserError, match="do not count from 0"):
        action_crossing(spaces.MultiDiscrete([2, 2], start=[1, 0]), "odd")
