"""MaskedBatchNorm against NumPy and Flax's own layer, and what a mask or a tiny batch must not do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from fedjax_mm.models.layers import MaskedBatchNorm


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def layer(seed=0, features=3):
    """A layer whose parameters and running statistics are not the trivial ones."""
    rng = np.random.default_rng(seed)
    norm = MaskedBatchNorm(features, dtype=jnp.float64)
    norm.scale[...], norm.bias[...] = rng.uniform(0.5, 2, features), rng.normal(size=features)
    norm.mean[...], norm.var[...] = rng.normal(size=features), rng.uniform(0.5, 2, features)
    return norm


def numbers(norm):
    return {name: np.asarray(getattr(norm, name)[...]) for name in ("scale", "bias", "mean", "var")}


def test_training_equals_numpy_and_moves_the_running_statistics_by_a_tenth():
    x = np.random.default_rng(1).normal(2, 3, size=(6, 3))
    mask = np.array([1, 0, 1, 1, 0, 1], bool)
    norm = layer()
    before = numbers(norm)
    y = norm(jnp.asarray(x), mask=jnp.asarray(mask), train=True)
    kept = x[mask]
    expected = (kept - kept.mean(0)) / np.sqrt(kept.var(0) + 1e-5) * before["scale"] + before["bias"]
    np.testing.assert_allclose(y[mask], expected, rtol=1e-10, atol=1e-12)
    after = numbers(norm)
    np.testing.assert_allclose(after["mean"], 0.9 * before["mean"] + 0.1 * kept.mean(0), rtol=1e-12)
    np.testing.assert_allclose(after["var"], 0.9 * before["var"] + 0.1 * kept.var(0), rtol=1e-12)


@pytest.mark.parametrize("train", [True, False])
def test_a_full_batch_equals_flax(train):
    x = jnp.asarray(np.random.default_rng(2).normal(1, 2, size=(8, 3)))
    norm = layer()
    reference = nnx.BatchNorm(
        3, momentum=0.9, epsilon=1e-5, dtype=jnp.float64, param_dtype=jnp.float64, rngs=nnx.Rngs(0)
    )
    for name, value in numbers(norm).items():
        kind = nnx.Param if name in ("scale", "bias") else nnx.BatchStat
        setattr(reference, name, kind(jnp.asarray(value)))
    expected = reference(x, use_running_average=not train)
    y = norm(x, mask=jnp.ones(8, bool), train=train)
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-10)
    for name in ("mean", "var"):
        np.testing.assert_allclose(getattr(norm, name)[...], getattr(reference, name)[...], rtol=1e-9)


def test_evaluation_uses_and_keeps_the_running_statistics():
    x, norm = np.random.default_rng(3).normal(size=(4, 3)), layer()
    before = numbers(norm)
    y = norm(jnp.asarray(x), mask=jnp.asarray([True, True, False, True]), train=False)
    expected = (x - before["mean"]) / np.sqrt(before["var"] + 1e-5) * before["scale"] + before["bias"]
    np.testing.assert_allclose(np.asarray(y)[[0, 1, 3]], expected[[0, 1, 3]], rtol=1e-10)
    for name, value in numbers(norm).items():
        np.testing.assert_array_equal(value, before[name])


def loss_and_state(x, mask):
    """Value, gradients with respect to input and parameters, and statistics of a generic loss on the unmasked rows."""
    graph, params, statistics = nnx.split(layer(), nnx.Param, nnx.BatchStat)
    weights = jnp.asarray(np.random.default_rng(4).normal(size=3))

    def loss(x, params):
        norm = nnx.merge(graph, params, statistics, copy=True)
        y = norm(x, mask=mask, train=True)
        total = jnp.sum(jnp.where(mask[:, None], jnp.tanh(y * weights), 0))
        return total, nnx.to_pure_dict(nnx.state(norm, nnx.BatchStat))

    (value, new), (to_x, to_params) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x, params)
    return value, new, to_x, nnx.to_pure_dict(to_params)


@pytest.mark.parametrize("garbage", [0.0, 1e6, np.nan, np.inf])
def test_rows_behind_the_mask_reach_no_value_gradient_or_statistic(garbage):
    x = jnp.asarray(np.random.default_rng(5).normal(size=(4, 3)))
    padded = jnp.concatenate([x, jnp.full((3, 3), garbage)])
    value, statistics, to_x, to_params = loss_and_state(padded, jnp.arange(7) < 4)
    expected, expected_statistics, expected_x, expected_params = loss_and_state(x, jnp.ones(4, bool))
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(to_x[:4], expected_x, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(to_x[4:], 0)
    assert np.abs(expected_x).max() > 1e-3
    for got, want in ((statistics, expected_statistics), (to_params, expected_params)):
        assert got.keys() == want.keys()
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", [0, 1])
def test_fewer_than_two_rows_use_and_keep_the_running_statistics(rows):
    x = jnp.asarray(np.random.default_rng(6).normal(size=(3, 3))).at[rows:].set(jnp.nan)
    mask = jnp.arange(3) < rows
    norm = layer()
    before = numbers(norm)
    y = norm(x, mask=mask, train=True)
    for name, value in numbers(norm).items():
        assert value.tobytes() == before[name].tobytes()
    np.testing.assert_array_equal(y[:rows], layer()(x, mask=mask, train=False)[:rows])
    _, _, to_x, to_params = loss_and_state(x, mask)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((to_x, to_params)))


def test_statistics_carry_no_gradient():
    graph, params, statistics = nnx.split(layer(), nnx.Param, nnx.BatchStat)

    def running(x):
        norm = nnx.merge(graph, params, statistics, copy=True)
        norm(x, mask=jnp.ones(4, bool), train=True)
        return jnp.sum(norm.mean[...] + norm.var[...])

    x = jnp.asarray(np.random.default_rng(7).normal(size=(4, 3)))
    np.testing.assert_array_equal(jax.grad(running)(x), 0)
