"""Convolutions as matrix products against XLA's own, in values and in gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from steppe.networks import convolution
from steppe.networks.convolution import convolve, convolve_folded, fold_images


def plain(x, kernel, strides, padding):
    names = ("NWC", "WIO", "NWC") if kernel.ndim == 3 else ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x.astype(jnp.float32), kernel, strides, padding, dimension_numbers=names)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_same(x, kernel, strides, padding):
    """Values and both gradients, for an output whose elements all count differently."""
    weights = floats(*plain(x, kernel, strides, padding).shape, seed=7)

    def outcome(convolve):
        def loss(x, kernel):
            output = convolve(x, kernel, strides, padding)
            return jnp.sum(jnp.sin(output) * weights), output

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(x, kernel)

    (own_gradients, own_output), (gradients, output) = outcome(convolve), outcome(plain)
    np.testing.assert_allclose(own_output, output, atol=1e-4, rtol=1e-4)
    for own, expected in zip(own_gradients, gradients, strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("shape", "window", "strides"),
    [
        ((13, 11), (3, 3), (1, 1)),
        ((13, 11), (4, 4), (2, 2)),
        ((13, 11), (3, 3), (2, 2)),
        ((12, 9), (8, 8), (4, 4)),
        ((12, 9), (1, 1), (1, 1)),
        ((12, 9), (1, 1), (3, 3)),
        ((12, 9), (2, 2), (3, 3)),
        ((12, 9), (5, 2), (1, 2)),
        ((7, 7), (7, 7), (7, 7)),
        ((11,), (3,), (1,)),
        ((11,), (4,), (2,)),
        ((11,), (5,), (3,)),
    ],
)
def test_values_and_gradients_equal_the_plain_convolution(padding, shape, window, strides):
    for channels in (3, 17):
        assert_same(floats(4, *shape, channels), floats(*window, channels, 5, seed=1), strides, padding)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_window_and_stride_equals_the_plain_convolution(data):
    axes = data.draw(st.integers(1, 2))
    shape = tuple(data.draw(st.integers(1, 12)) for _ in range(axes))
    padding = data.draw(st.sampled_from(["SAME", "VALID"]))
    window = tuple(data.draw(st.integers(1, size if padding == "VALID" else 6)) for size in shape)
    strides = tuple(data.draw(st.integers(1, 5)) for _ in range(axes))
    channels, batch = data.draw(st.sampled_from([1, 4, 20])), data.draw(st.integers(1, 3))
    assert_same(floats(batch, *shape, channels), floats(*window, channels, 3, seed=1), strides, padding)


@pytest.mark.parametrize("batch", [1, 6, 7, 12, 13])
def test_batches_in_pieces_give_the_same_results(monkeypatch, batch):
    monkeypatch.setattr(convolution, "CHUNK_BYTES", 4 * 25 * 4 * 4 * 3 * 4)  # the windows of 4 samples
    x, kernel = floats(batch, 12, 12, 3), floats(4, 4, 3, 5, seed=1)
    rows = {1: None, 6: 3, 7: 1, 12: 4, 13: 1}[batch]
    assert convolution._piece(x, kernel, (2, 2), "VALID") == rows
    assert_same(x, kernel, (2, 2), "VALID")


def test_a_batch_with_only_tiny_divisors_stays_whole(monkeypatch):
    monkeypatch.setattr(convolution, "CHUNK_BYTES", 4 * 25 * 4 * 4 * 3 * 8)  # the windows of 8 samples
    assert convolution._piece(floats(13, 12, 12, 3), floats(4, 4, 3, 5), (2, 2), "VALID") is None


@pytest.mark.parametrize("chunk_bytes", [2**12, 2**21])
def test_bytes_are_accepted_unchanged(monkeypatch, chunk_bytes):
    monkeypatch.setattr(convolution, "CHUNK_BYTES", chunk_bytes)
    x, kernel = np.random.default_rng(0).integers(0, 256, (8, 9, 9, 2), np.uint8), floats(3, 3, 2, 4)

    def loss(kernel, convolve):
        return jnp.sum(jnp.sin(convolve(x, kernel / 255, (2, 2), "SAME")))

    value, gradient = jax.value_and_grad(loss)(kernel, convolve)
    expected, expected_gradient = jax.value_and_grad(loss)(kernel, plain)
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-4)


def test_an_unused_input_gradient_is_not_computed():
    x, kernel = floats(2, 84, 84, 4), floats(8, 8, 4, 32)

    def products(argnums):
        def loss(x, kernel):
            return jnp.sum(jnp.square(convolve(x, kernel, (4, 4), "VALID")))

        return str(jax.make_jaxpr(jax.grad(loss, argnums=argnums))(x, kernel)).count("dot_general")

    # 4 taps forwards and one product for the kernel; 4 more for the input.
    assert products(1) == 5
    assert products((0, 1)) == 9


def test_gradients_can_be_differentiated_again():
    x, kernel, vector = floats(4, 6, 6, 2), floats(3, 3, 2, 3, seed=1), floats(3, 3, 2, 3, seed=2)

    def curvature(convolve):
        gradient = jax.grad(lambda kernel: jnp.sum(jnp.tanh(convolve(x, kernel, (1, 1), "SAME"))))
        return jax.grad(lambda kernel: jnp.vdot(gradient(kernel), vector))(kernel)

    np.testing.assert_allclose(curvature(convolve), curvature(plain), atol=1e-3)


def test_several_kernels_at_once_equal_one_after_the_other():
    x, kernels = floats(4, 6, 6, 2), floats(3, 3, 3, 2, 5, seed=1)

    def gradient(kernel):
        return jax.grad(lambda kernel: jnp.sum(jnp.square(convolve(x, kernel, (1, 1), "SAME"))))(kernel)

    together = jax.vmap(gradient)(kernels)
    for own, kernel in zip(together, kernels, strict=True):
        np.testing.assert_allclose(own, gradient(kernel), atol=1e-2, rtol=1e-4)


def test_accelerators_get_xlas_own_convolution(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    x, kernel = np.random.default_rng(0).integers(0, 256, (2, 6, 6, 2), np.uint8), floats(3, 3, 2, 3)
    names = [
        equation.primitive.name
        for equation in jax.make_jaxpr(convolve, static_argnums=(2, 3))(x, kernel, (1, 1), "SAME").eqns
    ]
    assert "conv_general_dilated" in names
    np.testing.assert_allclose(convolve(x, kernel, (1, 1), "SAME"), plain(x, kernel, (1, 1), "SAME"), rtol=1e-5)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("shape", "window", "strides"),
    [((84, 84), (8, 8), (4, 4)), ((13, 11), (4, 4), (2, 2)), ((12, 9), (5, 2), (1, 2)), ((11,), (4,), (2,))],
)
def test_images_that_were_folded_before_give_the_same_bits(shape, window, strides, padding):
    images = np.random.default_rng(1).integers(0, 256, (70, *shape, 4), np.uint8)
    kernel = floats(*window, 4, 16, seed=2)
    weights = floats(*plain(images, kernel, strides, padding).shape, seed=7)

    def outcome(convolve):
        def loss(kernel):
            output = convolve(kernel)
            return jnp.sum(jnp.sin(output / 255) * weights), output

        return jax.jit(jax.grad(loss, has_aux=True))(kernel)

    folded = fold_images(jnp.asarray(images), window, strides, padding)
    gradient, output = outcome(lambda kernel: convolve_folded(folded, kernel, strides, padding))
    expected_gradient, expected_output = outcome(lambda kernel: convolve(images, kernel, strides, padding))
    np.testing.assert_array_equal(output, expected_output)
    np.testing.assert_array_equal(gradient, expected_gradient)
