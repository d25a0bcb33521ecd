"""Fusions by hand, with modalities missing and NaN behind the mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.models.fusion import FUSION_NAMES, FUSIONS, AttentionSpec, masked_softmax
from fedjax_mm.models.networks import apply, init

# Two modalities, three samples of two dimensions; the last has no modality, the second only the second one.
FEATURES = np.array([[[1.0, 2.0], [9.0, 9.0], [9.0, 9.0]], [[3.0, 4.0], [5.0, 6.0], [9.0, 9.0]]])
OBSERVED = np.array([[True, False, False], [True, True, False]])
BY_HAND = {
    "sum": [[4, 6], [5, 6], [0, 0]],
    "mean": [[2, 3], [5, 6], [0, 0]],
    "concat": [[1, 2, 3, 4], [0, 0, 5, 6], [0, 0, 0, 0]],
}


def test_every_fusion_has_its_row_here():
    assert set(BY_HAND) == set(FUSIONS) == set(FUSION_NAMES) - {"attention"}


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


# --- attention -------------------------------------------------------------------------------------------------------

ATTENTION = AttentionSpec(2, 3)
# Scores of (1, 2) and (3, 4) by these numbers: 2 tanh(0.5) - tanh(0.2) and 2 tanh(1.5) - tanh(0.4).
NUMBERS = {
    "hidden": {"kernel": np.array([[0.5, 0.0, 0.0], [0.0, 0.1, 0.0]]), "bias": np.array([0.0, 0.0, 0.7])},
    "score": {"kernel": np.array([[2.0], [-1.0], [0.0]])},
}


def attend(params, features, observed, spec=ATTENTION, dtype=jnp.float64):
    return apply(spec, params, {}, jnp.asarray(features), jnp.asarray(observed), dtype=dtype)[0]


def drawn(modalities=4, samples=9, d=5, hidden=3):
    """Parameters, features and a mask with samples of none, one and all modalities."""
    rng = np.random.default_rng(0)
    params, statistics = init(AttentionSpec(d, hidden), jax.random.key(0), jnp.float64)
    assert not statistics
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + rng.normal(size=leaf.shape), params)
    observed = rng.random((modalities, samples)) < 0.5
    observed[:, 0], observed[:, 1], observed[:, 2] = False, True, np.arange(modalities) == 2
    return params, rng.normal(size=(modalities, samples, d)), observed


def attention_in_numpy(params, features, observed):
    """Sample after sample over the list of what it has: nothing there to mask."""
    w, b, v = params["hidden"]["kernel"], params["hidden"]["bias"], params["score"]["kernel"][:, 0]
    fused = np.zeros(features.shape[1:])
    for i in range(features.shape[1]):
        held = features[observed[:, i], i]
        if len(held):
            shares = np.exp([v @ np.tanh(w.T @ h + b) for h in held])
            fused[i] = shares @ held / shares.sum()
    return fused


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("x64")
def test_attention_by_hand():
    gap = 2 * np.tanh(1.5) - np.tanh(0.4) - (2 * np.tanh(0.5) - np.tanh(0.2))
    share = 1 / (1 + np.exp(-gap))
    assert 0.6 < share < 0.8
    expected = [[1 + 2 * share, 2 + 2 * share], [5, 6], [0, 0]]
    np.testing.assert_allclose(attend(NUMBERS, FEATURES, OBSERVED), expected, rtol=1e-14)
    np.testing.assert_array_equal(attend(NUMBERS, FEATURES, OBSERVED)[2], 0)


@pytest.mark.usefixtures("x64")
def test_attention_equals_numpy():
    params, features, observed = drawn()
    got = attend(params, features, observed, AttentionSpec(5, 3))
    np.testing.assert_allclose(got, attention_in_numpy(params, features, observed), rtol=1e-12, atol=1e-14)
    shuffled = np.random.default_rng(1).permutation(4)
    again = attend(params, features[shuffled], observed[shuffled], AttentionSpec(5, 3))
    np.testing.assert_allclose(again, got, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_the_gradient_of_attention_equals_finite_differences():
    params, features, observed = drawn()
    start = params, features
    direction = jax.tree.map(lambda leaf: np.random.default_rng(2).normal(size=np.shape(leaf)), start)

    def loss(at):
        return jnp.sum(jnp.sin(attend(at[0], at[1], observed, AttentionSpec(5, 3))))

    def moved(by):
        return loss(jax.tree.map(lambda p, d: p + by * d, start, direction))

    gradient = jax.grad(loss)(start)
    found = sum(jax.tree.leaves(jax.tree.map(lambda g, d: jnp.sum(g * d), gradient, direction)))
    np.testing.assert_allclose(found, (moved(1e-6) - moved(-1e-6)) / 2e-6, rtol=1e-7)
    assert all((np.asarray(leaf) != 0).any() for leaf in jax.tree.leaves(gradient))


@pytest.mark.usefixtures("x64")
def test_what_was_not_observed_changes_no_bit_of_attention_or_its_gradient():
    params, features, observed = drawn()

    def outcome(value):
        garbage = jnp.asarray(np.where(observed[..., None], features, value))
        return jax.value_and_grad(
            lambda p, f: jnp.sum(jnp.sin(attend(p, f, observed, AttentionSpec(5, 3)))), argnums=(0, 1)
        )(params, garbage)

    clean = outcome(0)
    np.testing.assert_array_equal(np.asarray(clean[1][1])[~observed], 0)
    for value in (1e6, np.nan, -np.inf):
        for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(outcome(value)), strict=True):
            assert np.isfinite(a).all()
            np.testing.assert_array_equal(a, b)


def test_the_gradient_of_attention_over_nothing_is_0():
    params = jax.tree.map(jnp.float32, NUMBERS)
    nothing = np.zeros_like(OBSERVED)
    fused, pull = jax.vjp(lambda p, f: attend(p, f, nothing, dtype=jnp.float32), params, jnp.full((2, 3, 2), jnp.nan))
    for leaf in (fused, *jax.tree.leaves(pull(jnp.ones((3, 2))))):
        np.testing.assert_array_equal(leaf, 0)


def test_shares_neither_overflow_nor_underflow():
    scores = jnp.asarray([[1e4, -1e4, np.nan], [1e4, -3e38, np.inf]], jnp.float32)
    mask = jnp.asarray([[True, True, False], [True, True, False]])
    np.testing.assert_array_equal(masked_softmax(scores, mask), [[0.5, 1, 0], [0.5, 0, 0]])
