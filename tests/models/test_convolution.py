"""Convolution and pooling: against loops in NumPy, against XLA's own, and what their gradients are made of."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.models.convolution import convolve, halve, pool

CASES = [
    *[((11, 3), (5,), 1), ((11, 1), (4,), 2), ((8, 7, 2), (3, 3), 1), ((8, 7, 2), (3, 3), 2), ((2, 1), (5,), 1)],
    # Long windows: some positions to a row, with and without some left over; a window longer than the input.
    *[((40, 3), (16,), 1), ((30, 2), (9,), 1), ((3, 2), (24,), 1)],
]
WITHIN = [((40, 3), (24,), 1), ((30, 2), (8,), 1), ((24, 2), (24,), 1), ((18, 2), (17,), 1), ((11, 2), (4,), 2)]
WITHIN += [((8, 7, 2), (3, 3), 1), ((9, 7, 2), (3, 2), 2)]


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


@pytest.mark.parametrize(("shape", "window", "stride"), WITHIN)
def test_without_padding_it_is_the_inner_part(shape, window, stride):
    """The part of the padded convolution, at every position, whose window lies within the input."""
    x, kernel = arrays(shape, window)
    places = tuple(
        slice((width - 1) // 2, (width - 1) // 2 + size - width + 1, stride)
        for size, width in zip(shape, window, strict=False)
    )
    expected = by_hand(x, kernel, 1)[:, *places]
    with jax.enable_x64(True):
        for native in (False, True):
            got = convolve(x, kernel, stride=stride, padding="VALID", native=native)
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


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
        halved = halve(convolve(sequence, jnp.concatenate([window] * 3), padding="VALID", native=False))
        return jnp.sum(convolve(x, kernel, stride=2, native=False)) + jnp.sum(pooled) + jnp.sum(halved)

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


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9])
def test_halving_keeps_the_larger_of_each_pair(length):
    x = np.random.default_rng(3).permutation(length * 2).reshape(1, length, 2).astype(np.float32)
    pairs = [rows for rows in np.split(np.arange(length), range(2, length, 2)) if len(rows) == 2 or length == 1]
    np.testing.assert_array_equal(halve(jnp.asarray(x)), np.stack([x[:, rows].max(axis=1) for rows in pairs], axis=1))
    gradient = np.asarray(jax.grad(lambda x: jnp.sum(halve(x)))(jnp.asarray(x)))
    expected = np.zeros_like(x)
    for rows in pairs:
        for channel in range(2):
            expected[0, rows[x[0, rows, channel].argmax()], channel] = 1
    np.testing.assert_array_equal(gradient, expected)
