"""Convolution and pooling: against loops in NumPy, against XLA's own, and what their gradients are made of."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.models.convolution import convolve, pool

CASES = [((11, 3), (5,), 1), ((11, 1), (4,), 2), ((8, 7, 2), (3, 3), 1), ((8, 7, 2), (3, 3), 2), ((2, 1), (5,), 1)]


def arrays(shape, window, dtype=np.float64):
    rng = np.random.default_rng(0)
    return rng.normal(size=(4, *shape)).astype(dtype), rng.normal(size=(*window, shape[-1], 6)).astype(dtype)


def by_hand(x, kernel, stride):
    """Every output as a sum over the window, entries outside the input being 0."""
    window, sizes = kernel.shape[:-2], x.shape[1:-1]
    out = [-(-size // stride) for size in sizes]
    lows = [max((o - 1) * stride + w - s, 0) // 2 for o, w, s in zip(out, window, sizes, strict=True)]
    y = np.zeros((len(x), *out, kernel.shape[-1]))
    for place in itertools.product(*map(range, out)):
        for tap in itertools.product(*map(range, window)):
            source = tuple(p * stride + t - low for p, t, low in zip(place, tap, lows, strict=True))
            if all(0 <= s < size for s, size in zip(source, sizes, strict=True)):
                y[:, *place] += x[:, *source] @ kernel[tap]
    return y


@pytest.mark.parametrize(("shape", "window", "stride"), CASES)
def test_the_convolution_equals_loops(shape, window, stride):
    x, kernel = arrays(shape, window)
    with jax.enable_x64(True):
        for native in (False, True):
            np.testing.assert_allclose(
                convolve(x, kernel, stride=stride, native=native), by_hand(x, kernel, stride), rtol=1e-10, atol=1e-12
            )


@pytest.mark.parametrize(("shape", "window", "stride"), CASES)
def test_both_forms_agree_in_values_and_gradients(shape, window, stride):
    x, kernel = arrays(shape, window, np.float32)

    def loss(arguments, native):
        return jnp.sum(jnp.sin(convolve(*arguments, stride=stride, native=native)))

    ours, theirs = (jax.value_and_grad(loss)((x, kernel), native) for native in (False, True))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def test_on_a_cpu_the_gradient_gathers_and_scatters_nothing():
    x, kernel = arrays((8, 7, 2), (3, 3))
    sequence, window = arrays((40, 2), (5,))

    def loss(x, kernel, sequence, window):
        pooled = pool(convolve(sequence, window, native=False))
        return jnp.sum(convolve(x, kernel, stride=2, native=False)) + jnp.sum(pooled)

    program = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2, 3)))(x, kernel, sequence, window))
    assert "dot_general" in program
    assert not any(name in program for name in ("scatter", "gather", "conv_general"))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 47, 240])
def test_bins_do_not_overlap_and_differ_by_at_most_one(length):
    x = np.random.default_rng(1).normal(size=(2, length, 3))
    with jax.enable_x64(True):
        pooled = np.asarray(pool(jnp.asarray(x)))
    bins = np.array_split(np.arange(length), min(length, 16))
    assert max(map(len, bins)) - min(map(len, bins)) <= 1
    np.testing.assert_array_equal(pooled, np.stack([x[:, rows].max(axis=1) for rows in bins], axis=1))


def test_the_gradient_of_pooling_goes_to_the_largest_entries():
    x = np.random.default_rng(2).permutation(35 * 2).reshape(1, 35, 2).astype(np.float32)
    gradient = np.asarray(jax.grad(lambda x: jnp.sum(pool(x)))(x))
    expected = np.zeros_like(x)
    for rows in np.array_split(np.arange(35), 16):
        for channel in range(2):
            expected[0, rows[x[0, rows, channel].argmax()], channel] = 1
    np.testing.assert_array_equal(gradient, expected)
