"""Which policies are interchangeable."""

from __future__ import annotations

import numpy as np
import pytest
from served_graphs import cart_pole

from policies import describe
from steppe.envs.gymnasium.vector import GymnasiumEnvs
from steppe.envs.registry import make_compiled
from steppe.serve.routing.compatibility import difference
from steppe.specs.environment import EnvironmentSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Part, Space

FORCE = Box((2,), (-2.0,), (2.0,))


def differing(observation: Space, other: Space, action: Space = FORCE, other_action: Space = FORCE) -> str | None:
    return difference(describe(observation, action), describe(other, other_action))


@pytest.mark.parametrize("id", ["CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0"])
def test_compiled_environments_match_those_of_gymnasium(id: str) -> None:
    spec = EnvironmentSpec(id=id)
    compiled = make_compiled(spec)
    with GymnasiumEnvs(spec, 1) as env:
        assert compiled.observation_space != env.observation_space
        assert (
            differing(compiled.observation_space, env.observation_space, compiled.action_space, env.action_space)
            is None
        )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (cart_pole("compiled"), Box((4,))),
        (Box((4,)), Box((4,), dtype="float64")),
        (Discrete(3), Discrete(3)),
    ],
)
def test_bounds_and_float_types_of_observations_do_not_matter(one: Space, other: Space) -> None:
    assert differing(one, other) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Box((4,)), Box((5,))),
        (Box((4,)), Box((4, 1))),
        (Box((4,)), Box((4,), dtype="uint8")),
        (Discrete(3), Discrete(4)),
        (Discrete(3), Discrete(3, start=1)),
        (MultiDiscrete((2, 3)), MultiDiscrete((3, 2))),
        (Discrete(3), MultiDiscrete((3,))),
        (Box((2,), parts=(Part("a", 0, Box((2,))),)), Box((2,), parts=(Part("b", 0, Box((2,))),))),
    ],
)
def test_other_shapes_types_choices_and_parts_differ(one: Space, other: Space) -> None:
    assert differing(one, other) == "observations"
    assert differing(Box((4,)), Box((4,)), one, other) == "actions"


def test_action_bounds_must_match_up_to_rounding() -> None:
    seen = Box((4,))
    rounded = Box((2,), (-float(np.float32(2.0000001)),), (2.0,))
    assert differing(seen, seen, FORCE, rounded) is None
    assert differing(seen, seen, FORCE, Box((2,), (-2.0, -2.0), (2.0, 2.0))) is None
    for other in (Box((2,), (-1.0,), (1.0,)), Box((2,)), Box((2,), (-2.0,), (2.0,), "float64")):
        assert differing(seen, seen, FORCE, other) == "actions"
