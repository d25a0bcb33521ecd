"""Contrasts, of modalities and of models: by hand, against NumPy, finite differences, zero vectors and masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.objectives.contrast import intermodal_contrast, model_contrast

# With this temperature a cosine of 1 counts 3 and a cosine of 0 counts 1.
TRIPLE = 1 / np.log(3)

# Compiled once for each shape, with the temperature traced: most tests below draw many inputs of one.
contrast_jit = jax.jit(intermodal_contrast)
contrast_and_slope = jax.jit(jax.value_and_grad(intermodal_contrast))


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def draw(seed, modalities=3, classes=4, dim=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(modalities, classes, dim)), rng.random((modalities, classes)) < 0.7


def oracle(prototypes, present, temperature):
    units = prototypes / np.linalg.norm(prototypes, axis=-1, keepdims=True)
    total = 0.0
    for m, n in np.ndindex(len(units), len(units)):
        for c in np.flatnonzero(present[m] & present[n]) if m != n else ():
            odds = np.exp(units[n] @ units[m, c] / temperature)
            total -= np.log(odds[c] / odds[present[n]].sum())
    return total


@pytest.mark.parametrize(
    ("second", "present", "expected"),
    [
        # Each of the four terms compares a cosine of 1 with a cosine of 0.
        ([[2, 0], [0, 3]], [True, True], 4 * np.log(4 / 3)),
        # From the first modality: 3 of 3 + 3 and 1 of 1 + 1; from the second: 3 of 3 + 1 and 1 of 3 + 1.
        ([[2, 0], [5, 0]], [True, True], 2 * np.log(2) + np.log(4 / 3) + np.log(4)),
        # Class 1 is not valid in the second: there class 0 has no rival, and only its way back counts.
        ([[2, 0], [5, 0]], [True, False], np.log(4 / 3)),
        ([[2, 0], [5, 0]], [False, False], 0),
    ],
)
def test_two_modalities_and_two_classes_by_hand(second, present, expected):
    prototypes = jnp.asarray([[[1, 0], [0, 1]], second], float)
    value = intermodal_contrast(prototypes, jnp.asarray([[True, True], present]), temperature=TRIPLE)
    np.testing.assert_allclose(value, expected, rtol=1e-14)


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 5))
@settings(max_examples=25, deadline=None)
def test_equals_numpy_ignores_order_and_lengths(seed, temperature):
    prototypes, present = draw(seed)
    value = contrast_jit(prototypes, present, temperature=temperature)
    np.testing.assert_allclose(value, oracle(prototypes, present, temperature), rtol=1e-11, atol=1e-13)
    rng = np.random.default_rng(seed)
    m, c = rng.permutation(3), rng.permutation(4)
    scaled = prototypes * rng.uniform(0.01, 100, size=(3, 4, 1))
    again = contrast_jit(scaled[m][:, c], present[m][:, c], temperature=temperature)
    np.testing.assert_allclose(again, value, rtol=1e-11, atol=1e-13)


def test_gradient_equals_finite_differences_and_is_zero_where_not_present():
    prototypes, _ = draw(1)
    present = np.array([[True, True, False, True], [True, True, True, False], [False, True, True, True]])
    _, gradient = contrast_and_slope(prototypes, present, temperature=0.5)
    steps = 1e-5 * np.eye(prototypes.size).reshape(-1, *prototypes.shape)
    shifted = jax.jit(jax.vmap(lambda step: intermodal_contrast(prototypes + step, present, temperature=0.5)))
    numeric = (shifted(steps) - shifted(-steps)) / 2e-5
    np.testing.assert_allclose(gradient, numeric.reshape(prototypes.shape), rtol=1e-5, atol=1e-8)
    assert np.abs(gradient[present]).max(axis=-1).min() > 0.01
    np.testing.assert_array_equal(gradient[~present], 0)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_not_present_reaches_neither_value_nor_gradient(garbage):
    prototypes, present = draw(2)
    present[:, 0] = False, True, True
    clean = contrast_and_slope(prototypes, present, temperature=0.5)
    dirty = contrast_and_slope(np.where(present[..., None], prototypes, garbage), present, temperature=0.5)
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)


@pytest.mark.parametrize(
    "present",
    [[[True, True]], [[True, False], [False, True]], [[False, False], [True, True]], [[False, False], [False, False]]],
)
def test_without_a_class_in_two_modalities_it_is_zero_with_zero_gradient(present):
    present = np.array(present)
    prototypes = np.where(present[..., None], [1.0, 2.0], np.nan)
    value, gradient = contrast_and_slope(prototypes, present, temperature=0.5)
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_no_step_on_the_way_is_infinite_or_nan():
    present = np.array([[True, False], [False, False]])
    with jax.debug_nans(True), jax.debug_infs(True):
        _, gradient = jax.value_and_grad(intermodal_contrast)(jnp.ones((2, 2, 3)), present, temperature=0.5)
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_zero_vector_has_cosine_zero_and_gradient_zero(dtype):
    prototypes = jnp.asarray([[[0, 0], [0, 1]], [[2, 0], [0, 3]]], dtype)
    result, gradient = contrast_and_slope(prototypes, np.ones((2, 2), bool), temperature=TRIPLE)
    # From the first: 1 of 1 + 1 and 3 of 3 + 1; from the second: 1 of 1 + 1 and 3 of 3 + 1.
    np.testing.assert_allclose(result, 2 * np.log(2) + 2 * np.log(4 / 3), rtol=1e-6)
    np.testing.assert_array_equal(gradient[0, 0], 0)
    # Turned towards the rival (0, 1), the vector (2, 0) raises a share of 1/2 there and, seen from there, one of 1/4.
    np.testing.assert_allclose(gradient[1, 0], [0, (1 / 2 + 1 / 4) * np.log(3) / 2], rtol=1e-6)
    assert np.isfinite(gradient).all()
    nothing, gradient = contrast_and_slope(0 * prototypes, np.ones((2, 2), bool), temperature=TRIPLE)
    np.testing.assert_allclose(nothing, 4 * np.log(2), rtol=1e-6)
    np.testing.assert_array_equal(gradient, 0)


def test_equal_prototypes_have_a_finite_value_and_no_pull_between_them():
    same = jnp.broadcast_to(jnp.asarray([0.3, -0.2, 0.7]), (2, 3, 3))
    value, gradient = contrast_and_slope(same, np.ones((2, 3), bool), temperature=0.5)
    np.testing.assert_allclose(value, 6 * np.log(3), rtol=1e-14)
    np.testing.assert_allclose(gradient, 0, atol=1e-14)


@pytest.mark.parametrize("length", [1e-30, 1e-15, 1e-6, 1e15, 1e30])
def test_very_short_and_very_long_vectors_are_finite_in_single_precision(length):
    prototypes, present = draw(3)
    prototypes[0, 0] *= length
    value, gradient = contrast_and_slope(jnp.asarray(prototypes, jnp.float32), jnp.ones_like(present), temperature=0.5)
    assert jnp.isfinite(value) and jnp.isfinite(gradient).all()


def test_a_low_temperature_does_not_overflow_single_precision():
    prototypes = jnp.asarray([[[1, 0], [0, 1]], [[0, 1], [1, 0]]], jnp.float32)
    value, gradient = contrast_and_slope(prototypes, np.ones((2, 2), bool), temperature=1e-4)
    np.testing.assert_allclose(value, 4e4, rtol=1e-6)
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize("wide", [False, True])
def test_single_precision_stays_single_whatever_the_temperature_is(wide):
    prototypes, present = draw(4)
    with jax.enable_x64(wide):
        x = prototypes.astype(np.float32)
        for temperature in (0.5, np.asarray(0.5), np.asarray(0.5, np.float32)):
            value, gradient = contrast_and_slope(x, present, temperature=temperature)
            assert value.dtype == gradient.dtype == jnp.float32
            np.testing.assert_allclose(value, oracle(prototypes, present, 0.5), rtol=1e-5)


# --- between models


def models(seed, samples=4, dim=3):
    return np.random.default_rng(seed).normal(size=(3, samples, dim))


def contrast_of(z, positive, negative, valid=None, temperature=0.5):
    valid = np.ones(len(z), bool) if valid is None else np.asarray(valid)
    arrays = (jnp.asarray(array, float) for array in (z, positive, negative))
    return model_contrast(*arrays, jnp.asarray(valid), temperature=temperature)


def test_cosines_of_1_and_0_at_temperature_a_half_by_hand():
    value, n = contrast_of([[3.0, 0.0]], [[0.1, 0.0]], [[0.0, 7.0]])
    np.testing.assert_allclose(value, 0.126928011042972, rtol=1e-13)
    assert n == 1


def test_it_is_softmax_cross_entropy_on_the_cosines():
    z, positive, negative = models(0)
    valid = [True, True, False, True]

    def cosine(a, b):
        return np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    scores = np.stack([cosine(z, positive), cosine(z, negative)]) / 0.3
    expected = (np.log(np.exp(scores).sum(axis=0)) - scores[0])[valid].mean()
    value, n = contrast_of(z, positive, negative, valid, 0.3)
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    assert n == 3


def test_equal_models_give_log_2_and_a_gradient_of_exactly_0():
    z, other, _ = models(1)
    value, slope = jax.value_and_grad(lambda z: contrast_of(z, other, other)[0])(jnp.asarray(z))
    np.testing.assert_allclose(value, np.log(2), rtol=1e-15)
    np.testing.assert_array_equal(slope, 0)


def test_lengths_do_not_matter_and_no_gradient_reaches_the_other_models():
    z, positive, negative = models(2)
    value, _ = contrast_of(z, positive, negative)
    np.testing.assert_allclose(contrast_of(3 * z, 5 * positive, negative / 7)[0], value, rtol=1e-13)
    slopes = jax.grad(lambda *arrays: contrast_of(*arrays)[0], argnums=(0, 1, 2))(*map(jnp.asarray, models(2)))
    assert np.abs(slopes[0]).max() > 1e-3
    np.testing.assert_array_equal(slopes[1:], 0)


@pytest.mark.parametrize("garbage", [0.0, 1e6, np.nan])
def test_a_sample_that_is_not_valid_and_a_feature_of_0_have_no_gradient(garbage):
    z, positive, negative = models(3)
    z[1] = 0
    valid = np.array([True, True, True, False])
    clean = jax.value_and_grad(lambda z: contrast_of(z, positive, negative, valid)[0])(jnp.asarray(z))
    z[3] = positive[3] = negative[3] = garbage
    again = jax.value_and_grad(lambda z: contrast_of(z, positive, negative, valid)[0])(jnp.asarray(z))
    for a, b in zip(clean, again, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.asarray(again[1])[[1, 3]], 0)


def test_the_slope_between_models_equals_finite_differences():
    z, positive, negative = models(4)
    slope = jax.grad(lambda z: contrast_of(z, positive, negative)[0])(jnp.asarray(z))
    for index in np.ndindex(z.shape):
        ends = []
        for sign in (1, -1):
            moved = z.copy()
            moved[index] += sign * 1e-6
            ends.append(contrast_of(moved, positive, negative)[0])
        np.testing.assert_allclose(slope[index], (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-9)
