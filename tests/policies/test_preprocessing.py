"""Stages against straightforward implementations, in NumPy and JAX; images have tests of their own."""

from __future__ import annotations

import json
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.errors import SpecError
from steppe.policies.layers import plan
from steppe.policies.preprocessing import Preprocessing
from steppe.specs.learning.network import NetworkSpec
from steppe.specs.learning.preprocessing import PreprocessingSpec
from steppe.specs.spaces import Box, Discrete, MultiDiscrete, Part

RNG = np.random.default_rng
MODULES = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
FRAME = Box((210, 160, 3), (0.0,), (255.0,), "uint8")
ATARI = [
    {"type": "image_resize", "width": 84, "height": 84},
    {"type": "grayscale"},
    {"type": "divide", "scale": 255},
    {"type": "sequence", "length": 4},
]


def preprocessing(stages, space):
    return Preprocessing(PreprocessingSpec.model_validate(stages), space)


def once(stages, space, observations, xp=np):
    """The results of the stages for first observations [N, ...]."""
    steps = preprocessing(stages, space)
    is_first = np.ones(len(observations), bool)
    processed, _ = steps(xp.asarray(observations), steps.initial((len(observations),)), xp.asarray(is_first), xp)
    assert processed.shape[1:] == steps.space.shape
    assert processed.dtype == steps.space.dtype
    return np.asarray(processed)


def area_mean(image, height, width):
    """Repeats pixels until the new ones cover whole ones, then takes means, in float64."""
    for axis, new in ((0, height), (1, width)):
        old = image.shape[axis]
        image = np.repeat(np.asarray(image, np.float64), new, axis)
        image = image.reshape(*image.shape[:axis], new, old, *image.shape[axis + 1 :]).mean(axis + 1)
    return image


def frames(count, seed=0, shape=FRAME.shape):
    return RNG(seed).integers(0, 256, (count, *shape), np.uint8)


# Bytes, floats and the network's division by 255


def reference_input(images):
    """The old stages, computed in floats: [84, 84, 4]."""
    scaled = [area_mean(image @ [0.299, 0.587, 0.114], 84, 84) / 255 for image in images]
    return np.stack(scaled, axis=-1)


@MODULES
def test_bytes_stay_bytes_and_the_network_gets_the_scaled_frames(xp):
    steps = preprocessing(ATARI, FRAME)
    assert steps.space == Box((84, 84, 4), (0.0,), (255.0,), "uint8")
    images, state = frames(4), steps.initial((1,))
    for t, image in enumerate(images):
        processed, state = steps(xp.asarray(image[None]), state, xp.asarray([t == 0]), xp)
    network = NetworkSpec.model_validate([{"type": "conv2d", "size": 1}])
    seen = np.asarray(plan(network, steps.space).encoding(processed, xp))[0]
    assert seen.dtype == np.float32
    assert np.abs(seen - reference_input(images)).max() <= 0.5 / 255 + 1e-4


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([{"type": "divide", "scale": 128}], lambda x: x / 128),
        (
            [{"type": "divide", "scale": 255}, {"type": "clip", "min": 0, "max": 0.5}],
            lambda x: np.minimum(x / 255, 0.5),
        ),
        ([ATARI[2], ATARI[2]], lambda x: x / 255**2),
        (
            [ATARI[2], {"type": "grayscale", "weights": [1, 1, 1]}],
            lambda x: (x / 255).sum(-1, keepdims=True),
        ),
        ([{"type": "clip", "min": 10, "max": 20}], lambda x: np.clip(x, 10, 20)),
    ],
)
@MODULES
def test_stages_that_need_floats_get_and_return_floats(xp, stages, expected):
    space = Box((6, 5, 3), (0.0,), (255.0,), "uint8")
    images = frames(2, shape=space.shape)
    made = once(stages, space, images, xp)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, expected(images.astype(float)), rtol=1e-5, atol=1e-6)


def test_grey_is_not_rounded_before_a_stage_that_needs_floats():
    space = Box((4, 4, 3), (0.0,), (255.0,), "uint8")
    images = frames(1, shape=space.shape)
    made = once(["grayscale", {"type": "divide", "scale": 2}], space, images)
    np.testing.assert_allclose(made[..., 0], images @ [0.299, 0.587, 0.114] / 2, atol=1e-4)


def test_floats_are_divided_by_255():
    space = Box((3,), (0.0,), (510.0,))
    np.testing.assert_allclose(once(ATARI[2], space, np.array([[0, 255, 510]])), [[0, 1, 2]])


# One observation at a time


@MODULES
def test_standardize_and_normalize_treat_each_observation_separately(xp):
    space = Box((4, 3))
    values = RNG(4).normal(3, 5, (5, 4, 3)).astype(np.float32)
    values[2] = 7.0
    standard, normal = (once(word, space, values, xp) for word in ("standardize", "normalize"))
    for i, each in enumerate(values.astype(float)):
        spread, extent = each.std() or 1.0, np.ptp(each) or 1.0
        np.testing.assert_allclose(standard[i], (each - each.mean()) / spread, atol=1e-4)
        np.testing.assert_allclose(normal[i], (each - each.min()) / extent, atol=1e-4)


@MODULES
def test_reshaping_keeps_all_numbers(xp):
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    space = Box((3, 4))
    np.testing.assert_array_equal(once("flatten", space, values, xp), values.reshape(2, 12))
    for axis, shape in ((-1, (3, 4, 1)), (0, (1, 3, 4)), (1, (3, 1, 4)), (-3, (1, 3, 4)), (2, (3, 4, 1))):
        made = once({"type": "expand_dims", "axis": axis}, space, values, xp)
        np.testing.assert_array_equal(made, values.reshape(2, *shape))


# Sequences


@given(
    frame=st.sampled_from([(3,), (40,), (2, 3), (4, 5, 1), (2, 2, 3)]),
    length=st.integers(1, 4),
    add_rank=st.booleans(),
    starts=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=8),
    dtype=st.sampled_from(["uint8", "float32"]),
)
@settings(max_examples=30, deadline=None)
def test_a_sequence_is_the_last_frames_of_each_episode(frame, length, add_rank, starts, dtype):
    space = Box(frame, (0.0,), (255.0,), dtype)
    steps = preprocessing([{"type": "sequence", "length": length, "add_rank": add_rank}], space)
    state = steps.initial((3,))
    starts[0] = [True, True, True]
    kept = [deque(maxlen=length) for _ in range(3)]
    for t, is_first in enumerate(starts):
        seen = RNG(t).integers(0, 256, (3, *frame)).astype(dtype)
        before = {name: np.array(leaf) for name, leaf in state.items()}
        processed, after = steps(seen, state, np.array(is_first))
        for i in range(3):
            if is_first[i]:
                kept[i].extend([seen[i]] * length)
            kept[i].append(seen[i])
            join = np.stack if add_rank else np.concatenate
            np.testing.assert_array_equal(processed[i], join(list(kept[i]), axis=-1))
        assert processed.dtype == dtype
        for name, leaf in state.items():
            np.testing.assert_array_equal(leaf, before[name])
        state = after


@pytest.mark.parametrize(("frame", "add_rank"), [((3,), False), ((4, 5, 1), False), ((4, 5), True)])
def test_a_compiled_sequence_is_the_same(frame, add_rank):
    steps = preprocessing([{"type": "sequence", "length": 3, "add_rank": add_rank}], Box(frame))
    seen = RNG(8).normal(size=(7, 2, *frame)).astype(np.float32)
    starts = np.array([[True, True], *[[t == 3, t in (1, 2)] for t in range(1, 7)]])

    def step(state, at):
        processed, state = steps(at[0], state, at[1], jnp)
        return state, processed

    _, compiled = jax.lax.scan(step, steps.initial((2,)), (seen, starts))
    state = steps.initial((2,))
    for t in range(7):
        processed, state = steps(seen[t], state, starts[t])
        np.testing.assert_array_equal(compiled[t], processed)


def test_two_sequences_have_separate_states():
    steps = preprocessing(["sequence", {"type": "sequence", "length": 2, "add_rank": True}], Box((1,)))
    state = steps.initial((1,))
    assert len(state) == 2
    for t in range(3):
        processed, state = steps(np.array([[t]]), state, np.array([t == 0]))
    assert processed.tolist() == [[[0, 1], [1, 2]]]


def test_only_sequences_need_a_state():
    assert preprocessing(ATARI[:3], FRAME).initial((8,)) == {}
    assert not preprocessing(ATARI[:3], FRAME).is_stateful
    (frames_kept,) = preprocessing(ATARI, FRAME).initial((8,)).values()
    assert frames_kept.shape == (8, 84, 84, 4)
    assert frames_kept.dtype == np.uint8
    assert preprocessing(ATARI, FRAME).is_stateful


# The space of the results


STAGES = st.sampled_from(
    [
        "grayscale",
        {"type": "grayscale", "weights": [1.5, -0.5, 0], "remove_rank": True},
        {"type": "image_resize", "width": 3, "height": 4},
        {"type": "image_resize", "width": 9, "height": 7},
        {"type": "divide", "scale": 255},
        {"type": "divide", "scale": 3},
        {"type": "clip", "min": -2, "max": 30},
        {"type": "sequence", "length": 3},
        {"type": "sequence", "add_rank": True},
        "standardize",
        "normalize",
        "flatten",
        {"type": "expand_dims", "axis": 0},
    ]
)


def bounded_spaces():
    rng = RNG(5)
    low = rng.uniform(-5, 0, 90)
    varied = Box((6, 5, 3), tuple(low.tolist()), tuple((low + rng.uniform(1, 9, 90)).tolist()))
    some = np.where(np.arange(90) % 7 == 0, np.inf, np.asarray(varied.high))
    return [
        Box((6, 5, 3), (0.0,), (255.0,), "uint8"),
        Box((6, 5, 3), (-1.0,), (1.0,)),
        varied,
        Box((6, 5, 3), varied.low, tuple(some.tolist())),
    ]


@given(stages=st.lists(STAGES, min_size=1, max_size=4), space=st.sampled_from(bounded_spaces()), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_results_lie_in_the_declared_space(stages, space, seed):
    try:
        steps = preprocessing(stages, space)
    except SpecError:
        return
    low, high = space.bounds()
    rng = RNG(seed)
    share = rng.choice([0.0, 1.0, 0.3], (4, *space.shape))
    values = (low + share * (np.where(np.isinf(high), 1e3, high) - low)).astype(space.dtype)
    processed, _ = steps(values, steps.initial((4,)), np.ones(4, bool))
    assert processed.shape == (4, *steps.space.shape)
    assert processed.dtype == steps.space.dtype
    least, most = steps.space.bounds()
    assert np.all(processed >= least - 1e-3)
    assert np.all(processed <= most + 1e-3)
    jitted = jax.jit(lambda x, state, first: steps(x, state, first, jnp)[0])
    compiled = np.asarray(jitted(values, steps.initial((4,)), np.ones(4, bool)))
    assert compiled.dtype == processed.dtype
    # A tie may be rounded either way.
    np.testing.assert_allclose(compiled.astype(float), processed, atol=1.0 if processed.dtype == np.uint8 else 2e-2)


@given(
    stages=st.lists(STAGES.filter(lambda stage: stage not in ("standardize", "normalize")), min_size=1, max_size=4),
    space=st.sampled_from(bounded_spaces()[:3]),
)
@settings(max_examples=60, deadline=None)
def test_bounds_are_reached(stages, space):
    if any(isinstance(stage, dict) and "weights" in stage for stage in stages):
        return
    try:
        steps = preprocessing(stages, space)
    except SpecError:
        return
    for bound, reached in zip(space.bounds(), steps.space.bounds(), strict=True):
        processed, _ = steps(bound[None].astype(space.dtype), steps.initial((1,)), np.ones(1, bool))
        np.testing.assert_allclose(processed[0], reached, atol=1e-4)


def test_bounds_that_are_all_the_same_are_written_once():
    steps = preprocessing([*ATARI[:2], {"type": "divide", "scale": 5}], FRAME)
    assert steps.space == Box((84, 84, 1), (0.0,), (51.0,), "float32")


def test_the_largest_standardized_number_is_reached():
    steps = preprocessing("standardize", Box((5,)))
    made = once("standardize", Box((5,)), np.array([[0, 0, 0, 0, 1.0]]))
    assert steps.space == Box((5,), (-2.0,), (2.0,))
    np.testing.assert_allclose(made.max(), 2.0, rtol=1e-5)


# JSON, equality, refusals


def test_preprocessing_survives_json():
    steps = preprocessing([*ATARI, {"type": "clip", "min": 0, "max": 1}, "flatten"], FRAME)
    again = Preprocessing.from_json(json.loads(json.dumps(steps.to_json())))
    assert again == steps
    assert hash(again) == hash(steps)
    assert again.space == steps.space
    assert again != preprocessing(ATARI, FRAME)


def test_no_stages_change_nothing():
    steps = preprocessing([], Discrete(4))
    assert steps.space == Discrete(4)
    observations = np.array([1, 2])
    processed, state = steps(observations, steps.initial((2,)), np.ones(2, bool))
    assert processed is observations
    assert state == {}


def test_running_standardize_is_left_to_the_agent():
    steps = preprocessing(["flatten", "running_standardize"], Box((2, 3), (0.0,), (255.0,), "uint8"))
    assert steps.normalizes
    assert steps.space == Box((6,), (0.0,), (255.0,), "float32")
    values = frames(2, shape=(2, 3))
    np.testing.assert_array_equal(
        steps(values, {}, np.ones(2, bool))[0], values.reshape(2, 6).astype(np.float32), strict=True
    )
    assert not preprocessing("flatten", Box((2, 3))).normalizes


def test_named_parts_keep_their_names_if_the_vector_is_unchanged():
    parts = (Part("speed", 0, Box((1,))), Part("camera", 1, Box((2, 2), (0.0,), (255.0,), "uint8")))
    space = Box((5,), parts=parts)
    assert preprocessing("running_standardize", space).space == space
    assert preprocessing("flatten", Box((1,), parts=parts[:1])).space.parts == parts[:1]
    with pytest.raises(SpecError, match='would take the bytes of "camera" for plain numbers'):
        preprocessing("sequence", space)


@pytest.mark.parametrize(
    ("stages", "space", "sentence"),
    [
        (
            ["flatten", "grayscale"],
            FRAME,
            "stage 1 (grayscale) of states_preprocessing needs height x width x 3 colours but gets shape (100800,); "
            "remove it",
        ),
        (
            ["grayscale", "grayscale"],
            FRAME,
            "stage 1 (grayscale) of states_preprocessing needs height x width x 3 colours but gets shape "
            "(210, 160, 1); remove it",
        ),
        (
            ATARI[0],
            Box((4, 84, 84), (0.0,), (255.0,), "uint8"),
            "stage 0 (image_resize) of states_preprocessing needs height x width x channels but gets shape "
            "(4, 84, 84); remove it",
        ),
        (
            {"type": "expand_dims", "axis": 3},
            Box((2, 3)),
            "stage 0 (expand_dims) of states_preprocessing gets shape (2, 3); its axis must lie in -3 .. 2",
        ),
        (
            "standardize",
            Box((1,)),
            "stage 0 (standardize) of states_preprocessing makes 0 of every observation that is a single number; use "
            '"running_standardize", which compares it with earlier ones',
        ),
        (
            "running_standardize",
            FRAME,
            "stage 0 (running_standardize) of states_preprocessing gets an image of shape (210, 160, 3); remove it; "
            "the network scales images",
        ),
        (
            "flatten",
            MultiDiscrete((2, 3)),
            "states_preprocessing computes with numbers, but the observations are choices; remove it",
        ),
    ],
)
def test_a_stage_that_does_not_fit_its_input_is_named(stages, space, sentence):
    with pytest.raises(SpecError) as error:
        preprocessing(stages, space)
    assert str(error.value) == sentence
