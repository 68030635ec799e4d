"""The share of random actions over time."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter

from steppe.errors import SpecError
from steppe.specs._base import Spec
from steppe.specs.learning.exploration import (
    ConstantExploration,
    EpsilonAnneal,
    EpsilonDecay,
    GaussianNoise,
    Noise,
    OrnsteinUhlenbeck,
    RandomActions,
)
from steppe.specs.loading.validation import validate


class Holder(Spec):
    """An agent's settings with exploration of both kinds."""

    discrete: RandomActions = ConstantExploration()
    """Of discrete actions."""
    continuous: Noise = ConstantExploration()
    """Of continuous ones."""


def read(exploration, kind="discrete"):
    return getattr(validate(Holder, {kind: exploration}, source="agent.json"), kind)


ANNEAL = {"type": "epsilon_anneal", "initial_epsilon": 0.9, "final_epsilon": 0.1, "timesteps": 1000}
SCHEDULES = [
    ({"type": "constant", "constant": 0.3}, [(0, 0.3), (10**9, 0.3)]),
    (ANNEAL, [(0, 0.9), (250, 0.7), (500, 0.5), (1000, 0.1), (1001, 0.1), (2**30, 0.1)]),
    (ANNEAL | {"start_timestep": 500}, [(0, 0.9), (500, 0.9), (1000, 0.5), (1500, 0.1), (9999, 0.1)]),
    (ANNEAL | {"initial_epsilon": 0.1, "final_epsilon": 0.9}, [(0, 0.1), (500, 0.5), (2000, 0.9)]),
    (
        {"type": "epsilon_decay", "initial_epsilon": 1.0, "final_epsilon": 0.2, "timesteps": 100, "half_lives": 4},
        # The distance to the end is halved every 25 timesteps; at the end it is 0.
        [(0, 1.0), (25, 0.6), (50, 0.4), (75, 0.3), (99, 0.2 + 0.8 * 0.5**3.96), (100, 0.2), (10**6, 0.2)],
    ),
    (
        {"type": "epsilon_decay", "timesteps": 100, "start_timestep": 10},
        [(0, 1.0), (10, 1.0), (20, 0.1 + 0.9 * 0.5), (110, 0.1)],
    ),
]


@pytest.mark.parametrize("as_given", [int, np.int32, jnp.int32], ids=["int", "numpy", "jax"])
@pytest.mark.parametrize(
    ("exploration", "points"), SCHEDULES, ids=lambda each: each["type"] if isinstance(each, dict) else ""
)
def test_the_share_of_random_actions_at_given_timesteps(exploration, points, as_given):
    xp = jnp if as_given is jnp.int32 else np
    for kind in ("discrete", "continuous"):
        spec = read(exploration, kind)
        for timestep, share in points:
            assert float(spec.epsilon(as_given(timestep), xp)) == pytest.approx(share, abs=1e-6)


def test_a_word_is_exploration_without_options():
    assert read("constant") == ConstantExploration()
    assert read("epsilon_anneal") == EpsilonAnneal()
    assert read("epsilon_decay") == EpsilonDecay()
    assert read("gaussian_noise", "continuous") == GaussianNoise()
    assert read("ornstein_uhlenbeck", "continuous") == OrnsteinUhlenbeck()


def test_linear_decay_is_another_word_for_annealing():
    spec = read({"type": "linear_decay", "initial_value": 0.8, "final_value": 0.2, "timesteps": 10})
    assert spec.epsilon(5, np) == pytest.approx(0.5)
    assert read({"type": "constant", "epsilon": 0.4}).epsilon(0, np) == 0.4


def test_every_kind_comes_back_from_its_dump():
    reader = TypeAdapter(Noise)
    for spec in (
        ConstantExploration(constant=0.2),
        EpsilonAnneal(final_epsilon=0.3),
        EpsilonAnneal(type="linear_decay"),
        EpsilonDecay(half_lives=3.0),
        GaussianNoise(sigma=0.3, mu=0.1),
        OrnsteinUhlenbeck(theta=0.5),
    ):
        assert reader.validate_python(spec.model_dump()) == spec
        assert reader.validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("exploration", "kind", "sentence"),
    [
        (
            "epsilon_aneal",
            "discrete",
            r'^unknown exploration "epsilon_aneal" in agent\.json at discrete\.type; did you mean',
        ),
        (
            "gaussian_noise",
            "discrete",
            r'agent\.json at discrete; "gaussian_noise" is for continuous actions; .*"epsilon_',
        ),
        ({"type": "constant", "constant": 1.1}, "discrete", r"at discrete\.constant; it must be at most 1"),
        ({"type": "epsilon_anneal", "timesteps": 0}, "discrete", r"at discrete\.timesteps; it must be at least 1"),
        ({"type": "epsilon_decay", "half_lives": 0}, "discrete", r"at discrete\.half_lives; it must be more than 0"),
        ({"type": "gaussian_noise", "sigma": -1}, "continuous", r"at continuous\.sigma; it must be at least 0"),
        ({"type": "ornstein_uhlenbeck", "theta": 2}, "continuous", r"at continuous\.theta; it must be at most 1"),
        ({"type": "ornstein_uhlenbeck", "sgima": 2}, "continuous", r'unknown field "sgima".*; did you mean "sigma"'),
        ({"sigma": 1.0}, "continuous", r'^missing field "type" in agent\.json at continuous'),
        (0.1, "discrete", r"discrete"),
    ],
)
def test_mistakes_are_named_with_their_place_and_the_nearest_word(exploration, kind, sentence):
    with pytest.raises(SpecError, match=sentence):
        read(exploration, kind)
