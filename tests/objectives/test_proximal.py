"""The proximal term: hand numbers, its fixed point, and no gradient into the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.objectives.proximal import squared_distance


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def local_loss(w, a, reference, mu):
    """(w - a)^2 / 2 with the proximal term."""
    return jnp.square(w - a) / 2 + mu / 2 * squared_distance(w, reference)


def test_it_sums_over_all_leaves():
    tree = {"a": jnp.asarray([1.0, 2.0]), "b": [jnp.asarray([[3.0]])]}
    other = {"a": jnp.asarray([1.0, 0.0]), "b": [jnp.asarray([[-1.0]])]}
    assert squared_distance(tree, other) == 4 + 16
    assert squared_distance({}, {}) == 0


def test_the_fixed_point_of_a_quadratic_is_the_weighted_middle():
    a, reference, mu, w = 3.0, 0.0, 0.5, jnp.asarray(1.0)
    for _ in range(200):
        w -= 0.1 * jax.grad(local_loss)(w, a, reference, mu)
    np.testing.assert_allclose(w, (a + mu * reference) / (1 + mu), rtol=1e-12)
    np.testing.assert_allclose(w, 2.0, rtol=1e-12)


def test_one_step_by_hand():
    step = 1.0 - 0.1 * jax.grad(local_loss)(jnp.asarray(1.0), 3.0, 0.0, 0.5)
    np.testing.assert_allclose(step, 1.15, rtol=1e-14)


def test_no_gradient_where_both_are_equal_and_none_into_the_reference():
    w, reference = jnp.asarray([0.3, -2.0]), jnp.asarray([1.0, 1.0])
    np.testing.assert_array_equal(jax.grad(squared_distance)(w, w), 0)
    np.testing.assert_array_equal(jax.grad(squared_distance, argnums=1)(w, reference), 0)
    np.testing.assert_allclose(jax.grad(squared_distance)(w, reference), 2 * (w - reference), rtol=1e-14)
