"""Fusions by hand, with modalities missing and NaN behind the mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.models.fusion import FUSIONS

# Two modalities, three samples of two dimensions; the last has no modality, the second only the second one.
FEATURES = np.array([[[1.0, 2.0], [9.0, 9.0], [9.0, 9.0]], [[3.0, 4.0], [5.0, 6.0], [9.0, 9.0]]])
OBSERVED = np.array([[True, False, False], [True, True, False]])
BY_HAND = {
    "sum": [[4, 6], [5, 6], [0, 0]],
    "mean": [[2, 3], [5, 6], [0, 0]],
    "concat": [[1, 2, 3, 4], [0, 0, 5, 6], [0, 0, 0, 0]],
}


def test_every_fusion_has_its_row_here():
    assert set(BY_HAND) == set(FUSIONS)


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("garbage", [9.0, 1e30, np.nan, np.inf])
def test_by_hand_whatever_stands_where_nothing_was_observed(name, garbage):
    features = jnp.asarray(np.where(OBSERVED[..., None], FEATURES, garbage), jnp.float32)
    fused = FUSIONS[name](None, features, jnp.asarray(OBSERVED))
    np.testing.assert_array_equal(fused, BY_HAND[name])
    assert fused.dtype == features.dtype


@pytest.mark.parametrize(("name", "share"), [("sum", 1), ("mean", 0.5), ("concat", 1)])
def test_gradients_reach_what_was_observed_and_nothing_else(name, share):
    features = jnp.asarray(np.where(OBSERVED[..., None], FEATURES, np.nan))
    gradient = jax.grad(lambda f: jnp.sum(FUSIONS[name](None, f, jnp.asarray(OBSERVED))))(features)
    np.testing.assert_array_equal(gradient[:, 0], share)
    np.testing.assert_array_equal(gradient[1, 1], 1)
    np.testing.assert_array_equal(gradient[0, 1:], 0)
    np.testing.assert_array_equal(gradient[1, 2], 0)


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_the_order_of_the_modalities_does_not_matter(name):
    fused = FUSIONS[name](None, jnp.asarray(FEATURES), jnp.asarray(OBSERVED))
    np.testing.assert_array_equal(FUSIONS[name](None, jnp.asarray(FEATURES[::-1]), jnp.asarray(OBSERVED[::-1])), fused)
