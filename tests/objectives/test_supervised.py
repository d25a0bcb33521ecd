"""Cross-entropy against SciPy in double precision, at extreme logits and under masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from fedjax_mm.objectives.supervised import balanced_cross_entropy, cross_entropy


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 50))
@settings(max_examples=30, deadline=None)
def test_equals_scipy_over_the_valid_rows(seed, scale):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=scale, size=(5, 4))
    y, valid = rng.integers(4, size=5), rng.random(5) < 0.6
    mean, n = cross_entropy(jnp.asarray(logits), jnp.asarray(y, jnp.int32), jnp.asarray(valid))
    picked = -log_softmax(logits, axis=1)[np.arange(5), y][valid]
    np.testing.assert_allclose(mean, picked.sum() / max(valid.sum(), 1), rtol=1e-12, atol=1e-14)
    assert n == valid.sum()


def test_extreme_logits_keep_value_and_gradient_finite():
    logits = jnp.asarray([[1e4, -1e4, 0.0], [1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], jnp.float32)
    y, valid = jnp.asarray([0, 1, 2]), jnp.ones(3, bool)
    value, gradient = jax.value_and_grad(lambda x: cross_entropy(x, y, valid)[0])(logits)
    np.testing.assert_allclose(value, (0 + 2e4 + np.log(3)) / 3, rtol=1e-6)
    third = 1 / 3
    expected = np.array([[0, 0, 0], [1, -1, 0], [third, third, third - 1]]) / 3
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e30])
def test_what_stands_in_an_invalid_row_reaches_neither_value_nor_gradient(garbage):
    clean = jnp.asarray([[0.5, -1.0], [0.0, 0.0], [2.0, 1.0]])
    dirty = clean.at[1].set(garbage)
    valid = jnp.asarray([True, False, True])

    def loss(x, y):
        return cross_entropy(x, y, valid)[0]

    value, gradient = jax.value_and_grad(loss)(dirty, jnp.asarray([1, 99, 0]))
    expected, expected_gradient = jax.value_and_grad(loss)(clean, jnp.asarray([1, 0, 0]))
    assert value == expected
    np.testing.assert_array_equal(gradient, expected_gradient)
    np.testing.assert_array_equal(gradient[1], 0)


def test_nothing_valid_is_zero_with_zero_gradient():
    def loss(logits):
        return cross_entropy(logits, jnp.zeros(2, jnp.int32), jnp.zeros(2, bool))

    (value, n), gradient = jax.value_and_grad(loss, has_aux=True)(jnp.full((2, 3), jnp.nan))
    assert (value, n) == (0, 0)
    np.testing.assert_array_equal(gradient, 0)


def test_gradient_is_softmax_minus_one_hot_over_the_count():
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(4, 3)), np.array([2, 0, 1, 1])
    valid = np.array([True, True, False, True])
    gradient = jax.grad(lambda x: cross_entropy(x, jnp.asarray(y), jnp.asarray(valid))[0])(jnp.asarray(logits))
    expected = (np.exp(log_softmax(logits, axis=1)) - np.eye(3)[y]) * valid[:, None] / 3
    np.testing.assert_allclose(gradient, expected, atol=1e-14)


# --- balanced softmax


def balanced(logits, y, counts, valid=None):
    y = jnp.asarray(y)
    valid = jnp.ones(y.shape, bool) if valid is None else jnp.asarray(valid)
    return float(balanced_cross_entropy(jnp.asarray(logits, float), y, valid, jnp.asarray(counts))[0])


@pytest.mark.parametrize(("y", "expected"), [(0, np.log(4)), (1, np.log(4 / 3))])
def test_counts_of_1_and_3_by_hand(y, expected):
    np.testing.assert_allclose(balanced([[0, 0]], [y], [1, 3]), expected, rtol=1e-14)


def test_equal_counts_are_cross_entropy_and_a_common_factor_is_nothing():
    rng = np.random.default_rng(0)
    logits, y, counts = rng.normal(size=(6, 3)), rng.integers(3, size=6), np.array([2, 5, 1])
    plain, _ = cross_entropy(jnp.asarray(logits), jnp.asarray(y), jnp.ones(6, bool))
    np.testing.assert_allclose(balanced(logits, y, [7, 7, 7]), plain, rtol=1e-14)
    np.testing.assert_allclose(balanced(logits, y, 10 * counts), balanced(logits, y, counts), rtol=1e-14)
    assert abs(balanced(logits, y, counts) - plain) > 1e-2


def test_a_class_without_samples_gets_no_probability_and_a_sample_of_it_a_finite_loss():
    # Two classes are left: counts 1 and 1, so log 2; with the absent class's logit, whatever it is.
    np.testing.assert_allclose(balanced([[0, 0, 50]], [0], [1, 1, 0]), np.log(2), rtol=1e-14)
    assert 1e3 < balanced([[0, 0, 0]], [2], [1, 1, 0]) < 1e5
    assert np.isfinite(balanced([[0, 0, 0]], [2], [0, 0, 0]))


def test_rows_that_are_not_valid_may_be_anything():
    clean = balanced([[1, 2], [0, 0]], [0, 1], [1, 3], [True, False])
    assert balanced([[1, 2], [np.nan, 1e9]], [0, 1], [1, 3], [True, False]) == clean
