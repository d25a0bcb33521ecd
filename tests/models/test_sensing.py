"""The sensing encoder: against NumPy and SciPy, by finite differences, under masks, and its dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate

from fedjax_mm.models import EncoderSpec, apply, init
from fedjax_mm.models.pool import draw_encoder, shared_encoder

DTYPE = jnp.float64
KEY = jax.random.key(3)


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@functools.cache
def fresh(length, channels=2, dim=5, rows=3):
    """The architecture, parameters whose biases are not zero, and a batch."""
    spec, rng = EncoderSpec("sensing", (length, channels), (), dim), np.random.default_rng(length)
    params = init(spec, jax.random.key(1), DTYPE)[0]
    params = jax.tree.map(lambda leaf: np.asarray(leaf + rng.normal(scale=0.1, size=leaf.shape)), params)
    return spec, params, rng.normal(size=(rows, length, channels))


def run(spec, params, x, *, train=False, key=KEY, mask=None):
    mask = np.ones(len(x), bool) if mask is None else mask
    return forward(spec, params, jnp.asarray(x), jnp.asarray(mask), key, train)


@functools.partial(jax.jit, static_argnums=(0, 5))
def forward(spec, params, x, mask, key, train):
    return apply(spec, params, {}, x, mask=mask, key=key, train=train, dtype=DTYPE)[0]


def by_hand(params, x):
    """One window of time [T, channels]: convolution by SciPy, ReLU, then the maximum of each pair, as written."""
    for position in range(3):
        layer = params["convolutions"][position]
        kernel = layer["kernel"]
        x = np.stack([correlate(x, kernel[..., o], mode="valid")[:, 0] for o in range(kernel.shape[-1])], axis=1)
        x = np.maximum(x + layer["bias"], 0)
        if position < 2 and len(x) > 1:
            x = np.stack([x[2 * t : 2 * t + 2].max(axis=0) for t in range(len(x) // 2)])
    x = x.max(axis=0)
    return x @ params["last"]["kernel"] + params["last"]["bias"] if "last" in params else x


# Shorter than the first window, as long, one more; an odd number to halve; shorter than the third one is left; long.
@pytest.mark.parametrize("length", [1, 2, 23, 24, 25, 58, 99, 100])
def test_the_encoder_equals_scipy(length):
    spec, params, x = fresh(length)
    np.testing.assert_allclose(run(spec, params, x), [by_hand(params, row) for row in x], rtol=1e-10, atol=1e-12)


def test_d_of_96_are_the_maxima_themselves():
    spec, params, x = fresh(60, dim=96)
    assert set(params) == {"convolutions"}
    np.testing.assert_allclose(run(spec, params, x), [by_hand(params, row) for row in x], rtol=1e-10, atol=1e-12)
    assert set(fresh(60)[1]) == {"convolutions", "last"}


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (200, (24 * 2 * 32 + 32) + (16 * 32 * 64 + 64) + (8 * 64 * 96 + 96) + (96 * 5 + 5)),
        # 60 - 23 = 37, halved 18; 18 - 15 = 3, halved 1.
        (60, (24 * 2 * 32 + 32) + (16 * 32 * 64 + 64) + (1 * 64 * 96 + 96) + (96 * 5 + 5)),
        (10, (10 * 2 * 32 + 32) + (1 * 32 * 64 + 64) + (1 * 64 * 96 + 96) + (96 * 5 + 5)),
    ],
)
def test_parameters_are_counted_by_hand(length, expected):
    assert sum(leaf.size for leaf in jax.tree.leaves(fresh(length)[1])) == expected


def test_a_series_of_vectors_is_one_of_their_entries():
    spec, params, x = fresh(40, channels=6)
    folded = EncoderSpec("sensing", (40, 2, 3), (), 5)
    np.testing.assert_array_equal(run(folded, params, x.reshape(3, 40, 2, 3)), run(spec, params, x))


@pytest.mark.parametrize("train", [False, True])
def test_the_gradient_equals_finite_differences(train):
    """Under training the same entries are dropped on both sides."""
    spec, params, x = fresh(90)
    rng = np.random.default_rng(5)
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), params)
    loss = jax.jit(lambda p: jnp.sum(jnp.sin(run(spec, p, x, train=train))))

    def moved(by):
        return loss(jax.tree.map(lambda p, d: p + by * d, params, direction))

    found = sum(jax.tree.leaves(jax.tree.map(lambda g, d: jnp.sum(g * d), jax.grad(loss)(params), direction)))
    np.testing.assert_allclose(found, (moved(1e-7) - moved(-1e-7)) / 2e-7, rtol=1e-5)
    for path, gradient in jax.tree.leaves_with_path(jax.grad(loss)(params)):
        assert (np.asarray(gradient) != 0).any(), jax.tree_util.keystr(path)


@pytest.mark.parametrize("train", [False, True])
def test_rows_that_are_masked_influence_nothing(train):
    spec, params, x = fresh(60)
    mask = np.array([True, False, True])

    @jax.jit
    def loss(params, x):
        out = run(spec, params, x, train=train, mask=mask)
        return jnp.sum(jnp.where(mask[:, None], jnp.sin(out), 0)), out[mask]

    def outcome(value):
        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, jnp.where(mask[:, None, None], x, value))

    clean = outcome(0.0)
    assert (np.asarray(clean[1][1][0]) != 0).any()
    for value in (1e6, np.nan, np.inf):
        for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(outcome(value)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_dropout_is_off_in_evaluation_and_follows_the_key_in_training():
    spec, params, x = fresh(60)
    a, b = jax.random.split(KEY)
    np.testing.assert_array_equal(run(spec, params, x, key=a), run(spec, params, x, key=b))
    first, again, other = (np.asarray(run(spec, params, x, train=True, key=key)) for key in (a, a, b))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    assert np.abs(first - run(spec, params, x)).max() > 1e-3


def test_each_of_three_layers_drops_a_tenth_and_scales_the_rest():
    """Each kernel passes one number on, so that the feature is 0 where something was dropped."""
    spec, rows = EncoderSpec("sensing", (1, 1), (), 96), 4000
    params = jax.tree.map(jnp.zeros_like, init(spec, KEY, DTYPE)[0])
    for position in range(3):
        kernel = params["convolutions"][position]["kernel"]
        params["convolutions"][position]["kernel"] = kernel.at[:, 0].set(1)
    out = np.asarray(run(spec, params, np.ones((rows, 1, 1)), train=True))
    # The first two layers' channel 0 decides for a whole row, the third layer for each entry.
    whole = (out > 0).any(axis=1)
    kept = (out[whole] > 0).mean()
    np.testing.assert_allclose(out[out > 0], 0.9**-3, rtol=1e-4)
    assert abs(whole.mean() - 0.81) < 4 * np.sqrt(0.81 * 0.19 / rows)
    assert abs(kept - 0.9) < 4 * np.sqrt(0.09 / (96 * whole.sum()))


def test_what_a_row_drops_does_not_depend_on_the_padding_of_the_batch():
    spec, params, x = fresh(60, rows=7)
    np.testing.assert_allclose(
        run(spec, params, x, train=True)[:4], run(spec, params, x[:4], train=True), rtol=1e-12, atol=1e-14
    )


def test_its_shape_is_its_own_whatever_widths_are_drawn_or_given():
    spec = EncoderSpec("sensing", (20, 3), (), 8)
    assert shared_encoder((20, 3), 8, kind="sensing", widths=((7,),)) == spec
    draw = functools.partial(draw_encoder, (20, 3), 8, kinds=("sensing", "dnn"), split_seed=0, modality=0)
    for pool_size, widths in ((None, None), (50, None), (50, ((7,), (9,)))):
        drawn = {draw(client=k, pool_size=pool_size, widths=widths) for k in range(200)}
        assert {s for s in drawn if s.kind == "sensing"} == {spec}
        assert len(drawn) > 1
    assert str(spec) == "sensing 20x3-8"
