"""The endpoint's account of itself, and the observations that it accepts."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from served_graphs import cart_pole, make_endpoint, save_constant, save_policy

from steppe.errors import UserError
from steppe.serve import NotFound
from steppe.specs.spaces import Box, Discrete, MultiDiscrete

TWO = {"kind": "abtest", "name": "split", "branches": ["p0", "p1"]}


@pytest.mark.parametrize(
    ("observations", "sentence"),
    [
        ([1, 2, 3], r"shape \[4\] or \[batch, 4\], not \[3\]"),
        ([[1, 2, 3, 4, 5]], r"not \[1, 5\]"),
        ([[1, 2, 3, math.nan]], "NaN or an infinity"),
        ([[1, 2, 3, math.inf]], "NaN or an infinity"),
        ([[1, 2, 3, 1e300]], "NaN or an infinity"),
        ([[1, 2, 3, "x"]], "must be numbers"),
        ([[1, 2, 3, None]], "must be numbers"),
        ([[1, 2], [3]], "must be numbers of the shape"),
        ([], "not"),
        (np.zeros((0, 4)), "there are no observations"),
    ],
)
def test_invalid_observations_are_explained(tmp_path, observations, sentence):
    endpoint = make_endpoint(tmp_path, "p0")
    with pytest.raises(UserError, match=sentence):
        endpoint.check(observations)


def test_a_question_has_a_limited_number_of_rows(tmp_path):
    endpoint = make_endpoint(tmp_path, "p0", limits={"rows": 3})
    assert len(endpoint.check(np.zeros((3, 4)))) == 3
    with pytest.raises(UserError, match="at most 3 observations, not 4"):
        endpoint.check(np.zeros((4, 4)))


def test_observations_are_cast_to_the_policys_type(tmp_path):
    endpoint = make_endpoint(tmp_path, "p0")
    for given in ([1, 2, 3, 4], [[1, 2, 3, 4]], np.array([1, 2, 3, 4]), np.array([[1, 2, 3, 4]], ">f8")):
        found = endpoint.check(given)
        assert (found.dtype, found.tolist()) == (np.float32, [[1.0, 2.0, 3.0, 4.0]])
    large = np.full((2, 4), np.finfo(np.float32).max, np.float32)
    assert endpoint.check(large) is large


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (Discrete(5, start=2), [2, 6], [7]),
        (MultiDiscrete((2, 3)), [[1, 2]], [[2, 0]]),
        (Box((2,), dtype="uint8"), [[0, 255]], [[0, 256]]),
    ],
)
def test_choices_and_bytes_must_be_in_range(tmp_path, space, good, bad):
    save_constant(tmp_path / "p0", 1, observation=space)
    endpoint = make_endpoint(tmp_path, "p0")
    assert endpoint.check(good).tolist() == good
    with pytest.raises(UserError, match=r"must (lie in|be whole numbers)"):
        endpoint.check(bad)
    with pytest.raises(UserError):
        endpoint.check(np.asarray(good) + 0.5)


def test_metadata_says_what_to_send(tmp_path):
    save_policy(tmp_path / "p0")
    save_policy(tmp_path / "p1", seed=1)
    endpoint = make_endpoint(tmp_path, TWO)
    whole, one = endpoint.metadata(), endpoint.metadata("p1")
    assert dataclasses.astuple(whole.inputs[0]) == ("observation", "FP32", (-1, 4))
    assert [dataclasses.astuple(each) for each in whole.outputs] == [
        ("action", "INT32", (-1,)),
        ("outputs", "FP32", (-1, 3)),
    ]
    assert (whole.name, whole.versions, whole.ready) == ("split", (), False)
    assert whole.properties["policies"] == ["p0", "p1"]
    assert one.versions == endpoint.standing().policies[1].versions
    assert endpoint.metadata("p1", one.versions[0]).versions == one.versions
    assert endpoint.models() == ("split", "p0", "p1")
    with pytest.raises(NotFound, match='no version "7"'):
        endpoint.metadata("p1", "7")
    with pytest.raises(NotFound, match="chooses between policies and has no versions"):
        endpoint.metadata("split", "7")


def test_policies_of_different_environments_are_refused(tmp_path):
    save_constant(tmp_path / "p0", 0)
    save_constant(tmp_path / "p1", 0, observation=Box((5,)))
    with pytest.raises(UserError, match='"p0" and "p1" have different observations'):
        make_endpoint(tmp_path, TWO)


def test_policies_with_rounding_differences_in_their_bounds_share_a_graph(tmp_path):
    for name, id in (("p0", "compiled"), ("p1", "gymnasium")):
        save_constant(tmp_path / name, 0, observation=cart_pole(id), space=Discrete(2))
    assert make_endpoint(tmp_path, TWO).metadata().properties["policies"] == ["p0", "p1"]
