"""Means over masks and weights: exact values, nothing to average over, dtypes, sums in parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.objectives.masked import finish_mean, masked_mean, weighted_mean, weighted_sum


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def cases():
    return st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 6))


def draw(case):
    seed, clients = case
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, size=clients).astype(np.float64)
    return rng.normal(size=(clients, 2, 3)), weights, rng.normal(size=(2, 3))


def test_masked_mean_by_hand():
    mean, count = masked_mean(jnp.asarray([1.0, jnp.nan, 4.0]), jnp.asarray([True, False, True]))
    assert (mean, count) == (2.5, 2)
    mean, count = masked_mean(jnp.asarray([jnp.nan, jnp.inf]), jnp.zeros(2, bool))
    assert (mean, count) == (0, 0)


def test_masked_mean_has_no_gradient_behind_the_mask():
    values, mask = jnp.asarray([1.0, jnp.nan, 4.0]), jnp.asarray([True, False, True])
    np.testing.assert_array_equal(jax.grad(lambda v: masked_mean(v, mask)[0])(values), [0.5, 0, 0.5])
    np.testing.assert_array_equal(jax.grad(lambda v: masked_mean(v, jnp.zeros(3, bool))[0])(values), 0)


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [((0, 1), (1, 3), 0.75), ((0, 1), (1, 1), 0.5), ((1, 4), (1, 3), 3.25), ((7, 9), (0, 2), 9.0)],
)
def test_weighted_mean_by_hand(values, weights, expected):
    mean = weighted_mean(jnp.asarray(values, float), jnp.asarray(weights, float), jnp.asarray(-1.0))
    assert mean == expected


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.bfloat16, jnp.float16])
def test_no_weight_at_all_keeps_the_old_value_bit_for_bit(dtype):
    old = jnp.asarray([0.1, -0.0, 3e-5], dtype)
    for garbage in (jnp.nan, jnp.inf, 1.0):
        kept = weighted_mean(jnp.full((2, 3), garbage, dtype), jnp.zeros(2), old)
        assert kept.dtype == old.dtype
        assert np.asarray(kept).tobytes() == np.asarray(old).tobytes()


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8, jnp.uint8, jnp.bool_])
def test_integer_leaves_are_counters_and_are_not_averaged(dtype):
    old = jnp.asarray([1, 0], dtype)
    kept = weighted_mean(jnp.asarray([[0, 1], [0, 1]], dtype), jnp.ones(2), old)
    assert kept.dtype == dtype
    np.testing.assert_array_equal(kept, old)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_keeps_its_dtype_but_is_summed_in_single(dtype):
    # 4097 values of 1 with weight 1: in half precision the running sum would stop growing at 256 or 2048.
    values = jnp.ones((4097, 1), dtype)
    mean = weighted_mean(values, jnp.ones(4097, jnp.float32), jnp.zeros(1, dtype))
    assert mean.dtype == dtype
    np.testing.assert_array_equal(mean, 1)
    # float16 overflows at 65504: the sum must not.
    assert weighted_mean(jnp.full((3,), 6e4, dtype), jnp.ones(3), jnp.zeros((), dtype)) == jnp.asarray(6e4, dtype)


def test_what_has_no_weight_may_be_anything():
    values = jnp.asarray([[1.0, 2.0], [jnp.nan, jnp.inf], [3.0, 6.0]])
    np.testing.assert_array_equal(weighted_mean(values, jnp.asarray([1, 0, 1]), jnp.zeros(2)), [2, 4])
    gradient = jax.grad(lambda v: jnp.sum(weighted_mean(v, jnp.asarray([1.0, 0, 1]), jnp.zeros(2))))(values)
    np.testing.assert_array_equal(gradient, [[0.5, 0.5], [0, 0], [0.5, 0.5]])


@given(cases())
@settings(max_examples=25, deadline=None)
def test_equals_numpy_and_is_unchanged_by_doubling_weights_or_clients(case):
    values, weights, old = draw(case)
    expected = np.average(values, axis=0, weights=weights) if weights.any() else old
    mean = weighted_mean(values, weights, jnp.asarray(old))
    np.testing.assert_allclose(mean, expected, rtol=1e-12)
    np.testing.assert_array_equal(weighted_mean(values, 2 * weights, jnp.asarray(old)), mean)
    twice = weighted_mean(np.repeat(values, 2, axis=0), np.repeat(weights, 2), jnp.asarray(old))
    np.testing.assert_allclose(twice, mean, rtol=1e-12, atol=1e-15)
    order = np.random.default_rng(0).permutation(len(weights))
    np.testing.assert_allclose(weighted_mean(values[order], weights[order], jnp.asarray(old)), mean, atol=1e-14)


@given(cases(), st.data())
@settings(max_examples=25, deadline=None)
def test_partial_sums_add_up(case, data):
    values, weights, old = draw(case)
    cut = data.draw(st.integers(0, len(weights)))
    parts = [weighted_sum(jnp.asarray(values[part]), jnp.asarray(weights[part])) for part in (np.s_[:cut], np.s_[cut:])]
    summed, total = (a + b for a, b in zip(*parts, strict=True))
    assert total == weights.sum()
    whole = weighted_mean(values, weights, jnp.asarray(old))
    np.testing.assert_allclose(finish_mean(summed, total, jnp.asarray(old)), whole, rtol=1e-12, atol=1e-14)
