"""Resizing and greying against plain means, Pillow and sums, in NumPy and JAX."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.policies.images import MOST_MULTIPLICATIONS
from steppe.policies.preprocessing import Preprocessing
from steppe.specs.learning.preprocessing import PreprocessingSpec
from steppe.specs.spaces import Box

RNG = np.random.default_rng
MODULES = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
FRAME = Box((210, 160, 3), (0.0,), (255.0,), "uint8")
RESIZE = {"type": "image_resize", "width": 84, "height": 84}


def once(stages, space, images, xp=np):
    """The results of the stages for images [N, ...]."""
    steps = Preprocessing(PreprocessingSpec.model_validate(stages), space)
    processed, _ = steps(xp.asarray(images), {}, xp.ones(len(images), bool), xp)
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


def frames(count, seed=0):
    return RNG(seed).integers(0, 256, (count, *FRAME.shape), np.uint8)


@given(
    old=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    share=st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0)),
    channels=st.sampled_from([(), (1,), (3,)]),
)
@settings(max_examples=40, deadline=None)
def test_a_smaller_image_averages_the_area_under_each_pixel(old, share, channels):
    height, width = (max(1, int(size * part)) for size, part in zip(old, share, strict=True))
    space = Box((*old, *channels), (-1.0,), (1.0,))
    if channels and 2 * old[0] <= min(old[1], channels[0]):
        return
    images = RNG(0).uniform(-1, 1, (2, *space.shape)).astype(np.float32)
    made = once({"type": "image_resize", "width": width, "height": height}, space, images)
    expected = np.stack([area_mean(image, height, width) for image in images])
    np.testing.assert_allclose(made, expected, atol=1e-5)


@MODULES
def test_a_larger_image_is_interpolated_as_pillow_does(xp):
    image_module = pytest.importorskip("PIL.Image")
    image = RNG(1).uniform(0, 255, (13, 9)).astype(np.float32)
    pillow = image_module.fromarray(image).resize((31, 20), image_module.Resampling.BILINEAR)
    made = once(
        {"type": "image_resize", "width": 31, "height": 20}, Box(image.shape, (0.0,), (255.0,)), image[None], xp
    )
    np.testing.assert_allclose(made[0], np.asarray(pillow), atol=1e-3)


@MODULES
def test_grey_is_the_weighted_sum_of_the_colours(xp):
    images = RNG(2).uniform(0, 1, (3, 4, 5, 3)).astype(np.float32)
    space = Box((4, 5, 3), (0.0,), (1.0,))
    expected = np.einsum("nhwc,c->nhw", images, [0.299, 0.587, 0.114])
    np.testing.assert_allclose(once("grayscale", space, images, xp)[..., 0], expected, atol=1e-6)
    own = once({"type": "grayscale", "weights": [2, -1, 0.5], "remove_rank": True}, space, images, xp)
    np.testing.assert_allclose(own, np.einsum("nhwc,c->nhw", images, [2, -1, 0.5]), atol=1e-6)


@MODULES
def test_bytes_stay_bytes_and_are_rounded_once(xp):
    images = frames(2)
    made = once([RESIZE, "grayscale"], FRAME, images, xp)
    assert made.dtype == np.uint8
    exact = np.stack([area_mean(image @ [0.299, 0.587, 0.114], 84, 84) for image in images])[..., None]
    assert np.abs(made - exact).max() <= 0.5 + 1e-3


def test_the_order_of_resizing_and_greying_does_not_matter():
    images = frames(2)
    np.testing.assert_array_equal(
        once([RESIZE, "grayscale"], FRAME, images), once(["grayscale", RESIZE], FRAME, images)
    )
    removed = {"type": "grayscale", "remove_rank": True}
    np.testing.assert_array_equal(once([removed, RESIZE], FRAME, images), once([RESIZE, removed], FRAME, images))


def test_two_resizings_are_one_after_the_other():
    space = Box((12, 10, 3), (0.0,), (1.0,))
    images = RNG(3).uniform(0, 1, (1, 12, 10, 3)).astype(np.float32)
    first = {"type": "image_resize", "width": 5, "height": 8}
    then = {"type": "image_resize", "width": 4, "height": 3}
    expected = area_mean(area_mean(images[0], 8, 5), 3, 4)
    np.testing.assert_allclose(once([first, then], space, images)[0], expected, atol=1e-6)


def test_an_image_of_one_colour_keeps_it_exactly():
    images = np.arange(256, dtype=np.uint8)[:, None, None, None] * np.ones((30, 20, 3), np.uint8)
    space = Box((30, 20, 3), (0.0,), (255.0,), "uint8")
    for width, height in ((7, 11), (33, 41)):
        stages = [{"type": "image_resize", "width": width, "height": height}, "grayscale"]
        made = once(stages, space, images)
        np.testing.assert_array_equal(made, np.broadcast_to(images[:, :1, :1, :1], made.shape))


@MODULES
@pytest.mark.parametrize("size", [(84, 84), (100, 84), (84, 100), (210, 84), (84, 160), (300, 31), (31, 300)])
def test_resizing_frames_is_the_product_of_both_axes(xp, size):
    height, width = size
    image = frames(1, seed=7)[0].astype(np.float32)
    space = Box(FRAME.shape, (0.0,), (255.0,))
    made = once({"type": "image_resize", "width": width, "height": height}, space, image[None], xp)[0]
    only_rows = once({"type": "image_resize", "width": 160, "height": height}, space, image[None])[0]
    only_columns = Box(only_rows.shape, (0.0,), (255.0,))
    expected = once({"type": "image_resize", "width": width, "height": height}, only_columns, only_rows[None])[0]
    np.testing.assert_allclose(made, expected, atol=1e-3)
    if height <= 210 and width <= 160:
        np.testing.assert_allclose(made, area_mean(image, height, width), atol=1e-3)


@pytest.mark.parametrize("size", [(210, 160), (211, 161), (480, 640), (64, 64), (240, 256)])
def test_products_are_too_small_to_be_spread_over_threads(size):
    space = Box((*size, 3), (0.0,), (255.0,), "uint8")
    steps = Preprocessing(PreprocessingSpec.model_validate([RESIZE, "grayscale"]), space)
    (operation,) = steps.operations
    length = size[1] * 3 if operation.rows_first else 84
    assert operation.group * operation.columns.size <= MOST_MULTIPLICATIONS
    assert operation.rows[0].size * length <= MOST_MULTIPLICATIONS
    image = RNG(9).integers(0, 256, (1, *space.shape), np.uint8)
    made = steps(image, {}, np.ones(1, bool))[0][0, ..., 0]
    if min(size) >= 84:
        assert np.abs(made - area_mean(image[0] @ [0.299, 0.587, 0.114], 84, 84)).max() <= 0.5 + 1e-3


def test_frames_are_resized_by_the_block_that_repeats():
    steps = Preprocessing(PreprocessingSpec.model_validate([RESIZE, "grayscale"]), FRAME)
    (operation,) = steps.operations
    assert operation.rows.shape == (1, 2, 5)
    assert operation.columns.shape == (40 * 3, 21)
    assert operation.rows_first


def test_many_images_are_the_same_as_each_alone():
    images = frames(23)
    together = once([RESIZE, "grayscale"], FRAME, images)
    np.testing.assert_array_equal(together, [once([RESIZE, "grayscale"], FRAME, each[None])[0] for each in images])
