"""Logit prototypes: entropies, weights and divergences by hand, against SciPy, under masks, at extreme logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.errors import UsageError
from fedjax_mm.objectives.logits import align_logits, entropy, entropy_weights

LOG2 = np.log(2)

# Compiled once for each shape: most tests below draw many inputs of one.
entropy_jit, weights_jit = jax.jit(entropy), jax.jit(entropy_weights)
entropy_slope = jax.jit(jax.grad(lambda logits: jnp.sum(entropy(logits))))
divergence_jit = jax.jit(align_logits, static_argnames="class_mean")
divergence_and_slope = jax.jit(jax.value_and_grad(align_logits, argnums=(0, 1)), static_argnames="class_mean")


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def differences(f, x):
    """Central differences of `f` in every entry of `x`."""
    steps = 1e-5 * np.eye(x.size).reshape(-1, *x.shape)
    return (jax.jit(jax.vmap(lambda step: f(x + step) - f(x - step)))(steps) / 2e-5).reshape(x.shape)


def prototypes(seed, clients=4, classes=3):
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(clients, classes, classes)), rng.random((clients, classes)) < 0.6


def pair(seed, classes=4):
    rng = np.random.default_rng(seed)
    local, target = 2 * rng.normal(size=(2, classes, classes))
    return local, target, rng.random(classes) < 0.6


def test_entropy_by_hand():
    logits = jnp.asarray([[0, 0, -1e4, -1e4], [5, 5, 5, 5], [np.log(3), 0, -1e4, -1e4], [-1e4, 1e4, 0, -1e4]])
    expected = [LOG2, 2 * LOG2, 2 * LOG2 - 0.75 * np.log(3), 0]
    np.testing.assert_allclose(entropy(logits), expected, rtol=1e-14)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100), st.floats(-1e3, 1e3))
@settings(max_examples=25, deadline=None)
def test_entropy_equals_scipy_whatever_is_added_to_all_logits(seed, scale, shift):
    logits = np.random.default_rng(seed).normal(scale=scale, size=(2, 3, 5))
    expected = scipy.stats.entropy(scipy.special.softmax(logits, axis=-1), axis=-1)
    np.testing.assert_allclose(entropy_jit(logits + shift), expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("gap", [5, 12, 18, 30, 60])
def test_entropy_of_a_confident_prediction_keeps_its_digits_in_single_precision(gap):
    small = np.exp(-np.float64(gap))
    exact = np.log1p(2 * small) + 2 * small * gap / (1 + 2 * small)
    value = entropy_jit(jnp.asarray([-gap, 0, -gap], jnp.float32))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, exact, rtol=1e-5)


@pytest.mark.parametrize("logits", [[0.3, -1.0, 2.0], [1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
def test_gradient_of_the_entropy_is_minus_p_times_log_p_plus_h_also_at_ties(logits):
    logits = np.asarray(logits)
    p = scipy.special.softmax(logits)
    gradient = entropy_slope(logits)
    np.testing.assert_allclose(gradient, -p * (np.log(p) + scipy.stats.entropy(p)), atol=1e-15)
    np.testing.assert_allclose(gradient, differences(entropy, logits), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_extreme_logits_have_entropy_zero_and_gradient_zero(dtype):
    logits = jnp.asarray([[1e4, -1e4, 0], [-1e4, 1e4, -1e4]], dtype)
    np.testing.assert_array_equal(entropy_jit(logits), 0)
    np.testing.assert_array_equal(entropy_slope(logits), 0)


def test_weights_of_two_and_three_clients_by_hand():
    # With epsilon log 2: a one-hot prediction counts 1, two even classes 1/2, four even classes 1/3.
    sure, two, four = [-1e4, 1e4, -1e4, 0], [0, 0, -1e4, -1e4], [1, 1, 1, 1]
    values = jnp.asarray([[sure, sure, four], [two, two, sure], [four, sure, sure]], float)
    held = jnp.asarray([[True, True, False], [True, True, False], [True, False, False]])
    weights = entropy_weights(values, held, epsilon=LOG2)
    expected = [[6 / 11, 2 / 3, 0], [3 / 11, 1 / 3, 0], [2 / 11, 0, 0]]
    np.testing.assert_allclose(weights, expected, rtol=1e-14)


@pytest.mark.parametrize("wide", [False, True])
def test_weights_beside_one_hot_predictions_in_single_precision(wide):
    with jax.enable_x64(wide):
        values = jnp.asarray([[[1e4, -1e4]], [[0, 0]], [[-1e4, 1e4]]], jnp.float32)
        weights = weights_jit(values, np.ones((3, 1), bool))
        assert weights.dtype == jnp.float32
        np.testing.assert_allclose(weights[:, 0], [0.5, 0.5e-8 / LOG2, 0.5], rtol=1e-6)
        alone = weights_jit(values, np.array([[False], [True], [False]]))
        np.testing.assert_array_equal(alone[:, 0], [0, 1, 0])
        slope = jax.jit(jax.grad(lambda x: entropy_weights(x, np.ones((3, 1), bool))[0, 0]))
        assert np.isfinite(slope(values)).all()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_weights_equal_numpy_permute_with_clients_and_classes_and_ignore_padded_clients(seed):
    values, held = prototypes(seed)
    weights = weights_jit(values, held)
    inverse = held / (scipy.stats.entropy(scipy.special.softmax(values, axis=-1), axis=-1) + 1e-8)
    total = inverse.sum(axis=0)
    np.testing.assert_allclose(weights, inverse / np.where(total > 0, total, 1), rtol=1e-9)
    np.testing.assert_allclose(weights.sum(axis=0), held.any(axis=0), rtol=1e-14)
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(4), rng.permutation(3)
    again = weights_jit(values[rows][:, columns][..., columns], held[rows][:, columns])
    np.testing.assert_allclose(again, np.asarray(weights)[rows][:, columns], rtol=1e-12)
    padded = np.concatenate([values, np.full((2, 3, 3), np.nan)]), np.concatenate([held, np.zeros((2, 3), bool)])
    more = weights_jit(*padded)
    np.testing.assert_allclose(more[:4], weights, rtol=1e-14)
    np.testing.assert_array_equal(more[4:], 0)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e30])
def test_a_prototype_not_held_reaches_neither_weights_nor_gradient(garbage):
    values, held = prototypes(1)
    held[:, 1] = False
    dirty = np.where(held[..., None], values, garbage)
    np.testing.assert_array_equal(weights_jit(dirty, held), weights_jit(values, held))
    np.testing.assert_array_equal(weights_jit(dirty, held)[:, 1], 0)
    slope = jax.jit(jax.grad(lambda x: jnp.sum(entropy_weights(x, held)[0])))
    np.testing.assert_array_equal(slope(dirty), slope(values))
    np.testing.assert_array_equal(slope(dirty)[~held], 0)
    assert np.abs(slope(dirty)[held]).max() > 0.01


def test_divergence_by_hand():
    # KL((3/4, 1/4) || (1/2, 1/2)) of class 0; class 1 has no global prototype.
    local, target = jnp.zeros((2, 2)), jnp.asarray([[np.log(3), 0], [9, 9]])
    both, exact = jnp.asarray([True, False]), 0.75 * np.log(3) - LOG2
    np.testing.assert_allclose(align_logits(local, target, both), exact / 2, rtol=1e-14)
    np.testing.assert_allclose(align_logits(local, target, both, class_mean="present"), exact, rtol=1e-14)
    # The other way round: KL((1/2, 1/2) || (3/4, 1/4)).
    exact = LOG2 - 0.5 * np.log(3)
    np.testing.assert_allclose(align_logits(target, local, both, class_mean="present"), exact, rtol=1e-14)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["all", "present"]))
@settings(max_examples=25, deadline=None)
def test_divergence_equals_scipy_and_ignores_the_order_of_classes(seed, class_mean):
    local, target, both = pair(seed)
    p, q = scipy.special.softmax(target, axis=-1), scipy.special.softmax(local, axis=-1)
    count = 4 if class_mean == "all" else max(both.sum(), 1)
    expected = scipy.special.rel_entr(p, q)[both].sum() / count
    value = divergence_jit(local, target, both, class_mean=class_mean)
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-15)
    order = np.random.default_rng(seed).permutation(4)
    moved = local[order][:, order], target[order][:, order], both[order]
    np.testing.assert_allclose(divergence_jit(*moved, class_mean=class_mean), value, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("class_mean", ["all", "present"])
def test_gradient_of_the_divergence_equals_finite_differences_and_none_reaches_the_targets(class_mean):
    local, target, _ = pair(2)
    both = np.array([True, False, True, True])
    _, (to_local, to_target) = divergence_and_slope(local, target, both, class_mean=class_mean)
    numeric = differences(lambda x: align_logits(x, target, both, class_mean=class_mean), local)
    np.testing.assert_allclose(to_local, numeric, rtol=1e-5, atol=1e-9)
    assert (np.abs(to_local).max(axis=1) > 0.01).tolist() == both.tolist()
    np.testing.assert_array_equal(to_local[~both], 0)
    np.testing.assert_array_equal(to_target, 0)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("class_mean", ["all", "present"])
def test_a_class_not_in_both_reaches_neither_divergence_nor_gradient(garbage, class_mean):
    local, target, _ = pair(3)
    both = np.array([False, True, False, True])
    spoil = np.where(both[:, None], 0, garbage)
    clean = divergence_and_slope(local, target, both, class_mean=class_mean)
    dirty = divergence_and_slope(local + spoil, target + spoil, both, class_mean=class_mean)
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)


@pytest.mark.parametrize("class_mean", ["all", "present"])
def test_divergence_over_nothing_is_zero_with_zero_gradient(class_mean):
    nothing = np.full((4, 4), np.nan)
    result = divergence_and_slope(nothing, nothing, np.zeros(4, bool), class_mean=class_mean)
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 0), result)


@pytest.mark.parametrize("wide", [False, True])
def test_divergence_of_extreme_logits_is_finite_and_single_precision_stays_single(wide):
    with jax.enable_x64(wide):
        local = jnp.asarray([[-1e4, 1e4], [1e4, -1e4]], jnp.float32)
        target = jnp.asarray([[1e4, -1e4], [1e4, -1e4]], jnp.float32)
        for class_mean in ("all", "present"):
            value, (gradient, _) = divergence_and_slope(local, target, jnp.ones(2, bool), class_mean=class_mean)
            assert value.dtype == gradient.dtype == jnp.float32
            assert value == 1e4
            np.testing.assert_array_equal(gradient, [[-0.5, 0.5], [0, 0]])


def test_an_unknown_class_mean_is_refused():
    with pytest.raises(UsageError, match=r"class mean 'some'.*all, present"):
        align_logits(jnp.zeros((2, 2)), jnp.zeros((2, 2)), jnp.ones(2, bool), class_mean="some")
