"""Prototypes: hand-worked values of every equation, masks, gradients, and scores where classes are absent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedjax_mm.objectives.prototypes import (
    class_means,
    class_sums,
    merge_prototypes,
    nearest_prototype_scores,
    pull_to_prototype,
)


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def batch(seed, n=7, d=3, classes=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.integers(classes, size=n), rng.random(n) < 0.7


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_class_sums_and_means_equal_numpy_and_ignore_invalid_rows(seed):
    features, y, valid = batch(seed)
    dirty = np.where(valid[:, None], features, np.nan)
    sums, counts = class_sums(jnp.asarray(dirty), jnp.asarray(y), jnp.asarray(valid), 4)
    means = class_means(sums, counts)
    for c in range(4):
        mine = features[valid & (y == c)]
        assert counts[c] == len(mine)
        np.testing.assert_allclose(sums[c], mine.sum(axis=0), atol=1e-14)
        np.testing.assert_allclose(means[c], mine.mean(axis=0) if len(mine) else 0, atol=1e-14)


def test_class_sums_of_two_batches_add_up_to_those_of_both():
    features, y, valid = (jnp.asarray(array) for array in batch(1, n=9))
    whole = class_sums(features, y, valid, 4)
    parts = [class_sums(features[part], y[part], valid[part], 4) for part in (np.s_[:4], np.s_[4:])]
    for total, first, second in zip(whole, *parts, strict=True):
        np.testing.assert_allclose(first + second, total, atol=1e-14)


def test_class_sums_send_no_gradient_to_invalid_rows():
    features, y, valid = (jnp.asarray(array) for array in batch(2))
    dirty = jnp.where(valid[:, None], features, jnp.nan)
    gradient = jax.grad(lambda z: jnp.sum(class_sums(z, y, valid, 4)[0]))(dirty)
    np.testing.assert_array_equal(gradient, np.broadcast_to(valid[:, None], gradient.shape))


@pytest.mark.parametrize(("weights", "expected"), [((1, 3), 3), ((1, 1), 2)])
def test_merge_of_one_sample_at_0_and_three_at_4(weights, expected):
    prototypes = jnp.asarray([[[0.0]], [[4.0]]])
    merged, present = merge_prototypes(
        prototypes, jnp.asarray(weights, float)[:, None], jnp.asarray([[-9.0]]), jnp.asarray([False])
    )
    np.testing.assert_array_equal(merged, [[expected]])
    np.testing.assert_array_equal(present, [True])


def test_merge_keeps_what_nobody_holds_bit_for_bit_with_its_validity():
    old = jnp.asarray([[0.1, -0.0], [0.2, 0.3], [7.0, 7.0]])
    known = jnp.asarray([True, False, True])
    prototypes = jnp.full((2, 3, 2), jnp.nan).at[:, 2].set(jnp.asarray([[1.0, 2.0], [3.0, 4.0]]))
    weights = jnp.asarray([[0.0, 0, 1], [0.0, 0, 1]])
    merged, present = merge_prototypes(prototypes, weights, old, known)
    assert np.asarray(merged[:2]).tobytes() == np.asarray(old[:2]).tobytes()
    np.testing.assert_array_equal(merged[2], [2, 3])
    np.testing.assert_array_equal(present, [True, False, True])


def test_merge_permutes_with_the_classes_and_ignores_the_order_of_clients():
    rng = np.random.default_rng(3)
    prototypes, old = rng.normal(size=(3, 4, 2)), rng.normal(size=(4, 2))
    weights, known = rng.integers(0, 3, size=(3, 4)).astype(float), np.array([True, False, True, False])
    merged, present = merge_prototypes(prototypes, weights, jnp.asarray(old), jnp.asarray(known))
    order = np.array([2, 0, 3, 1])
    again, known_again = merge_prototypes(
        prototypes[:, order], weights[:, order], jnp.asarray(old[order]), jnp.asarray(known[order])
    )
    np.testing.assert_array_equal(again, np.asarray(merged)[order])
    np.testing.assert_array_equal(known_again, np.asarray(present)[order])
    again, _ = merge_prototypes(prototypes[::-1], weights[::-1], jnp.asarray(old), jnp.asarray(known))
    np.testing.assert_allclose(again, merged, atol=1e-14)


def test_pull_of_3_4_to_the_origin_is_12_5():
    value = pull_to_prototype(
        jnp.asarray([[3.0, 4.0]]), jnp.asarray([0]), jnp.ones(1, bool), jnp.zeros((1, 2)), jnp.ones(1, bool)
    )
    assert value == 12.5


def test_pull_goes_to_the_prototype_of_the_own_class():
    prototypes = jnp.asarray([[0.0, 0.0], [3.0, 4.0]])
    value = pull_to_prototype(
        jnp.asarray([[3.0, 4.0], [3.0, 4.0]]), jnp.asarray([0, 1]), jnp.ones(2, bool), prototypes, jnp.ones(2, bool)
    )
    assert value == 12.5 / 2


def test_a_class_without_prototype_adds_nothing_but_counts_in_the_denominator():
    features = jnp.asarray([[3.0, 4.0], [100.0, 100.0], [jnp.nan, jnp.nan]])
    prototypes = jnp.asarray([[0.0, 0.0], [jnp.nan, jnp.inf]])
    y, valid, present = jnp.asarray([0, 1, 0]), jnp.asarray([True, True, False]), jnp.asarray([True, False])
    value, gradient = jax.value_and_grad(pull_to_prototype)(features, y, valid, prototypes, present)
    assert value == 12.5 / 2
    # d/dz of ||z||^2 / d over two valid samples is 2 z / (2 * 2).
    np.testing.assert_array_equal(gradient, [[1.5, 2.0], [0, 0], [0, 0]])


def test_pull_over_nothing_is_zero_with_zero_gradient():
    arguments = (jnp.asarray([0]), jnp.zeros(1, bool), jnp.zeros((1, 2)), jnp.ones(1, bool))
    value, gradient = jax.value_and_grad(pull_to_prototype)(jnp.full((1, 2), jnp.nan), *arguments)
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_pull_has_gradient_zero_at_the_prototype_itself():
    point = jnp.asarray([[0.3, -0.2]])
    gradient = jax.grad(pull_to_prototype)(point, jnp.asarray([0]), jnp.ones(1, bool), point, jnp.ones(1, bool))
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_gradient_of_the_pull_equals_finite_differences_and_none_reaches_the_prototypes(transform):
    features, y, valid = batch(4)
    prototypes, present = np.random.default_rng(5).normal(size=(4, 3)), np.array([True, False, True, True])

    @transform
    def value(z, p):
        return pull_to_prototype(z, jnp.asarray(y), jnp.asarray(valid), p, jnp.asarray(present))

    to_features, to_prototypes = jax.grad(value, argnums=(0, 1))(jnp.asarray(features), jnp.asarray(prototypes))
    numeric = np.zeros_like(features)
    for place in np.ndindex(features.shape):
        step = np.zeros_like(features)
        step[place] = 1e-6
        numeric[place] = (value(features + step, prototypes) - value(features - step, prototypes)) / 2e-6
    np.testing.assert_allclose(to_features, numeric, atol=1e-8)
    assert np.abs(to_features).max() > 0.01
    np.testing.assert_array_equal(to_prototypes, 0)


def test_scores_are_negative_squared_distances():
    scores = nearest_prototype_scores(
        jnp.asarray([[0.0, 0.0], [3.0, 3.0]]), jnp.asarray([[3.0, 4.0], [0.0, 1.0]]), jnp.ones(2, bool)
    )
    np.testing.assert_array_equal(scores, [[-25, -1], [-1, -13]])


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
@settings(max_examples=30, deadline=None)
def test_scores_are_finite_and_an_absent_class_is_never_predicted(seed, scale):
    rng = np.random.default_rng(seed)
    present = rng.random(5) < 0.6
    prototypes = np.where(present[:, None], scale * rng.normal(size=(5, 3)), np.nan)
    features = scale * rng.normal(size=(6, 3))
    scores = np.asarray(nearest_prototype_scores(features, jnp.asarray(prototypes), jnp.asarray(present)))
    assert np.isfinite(scores).all()
    if present.any():
        assert present[scores.argmax(axis=1)].all()
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        assert (odds / odds.sum(axis=1, keepdims=True))[:, ~present].max(initial=0) < 1e-40
    else:
        np.testing.assert_array_equal(scores, 0)


def test_an_absent_class_is_not_predicted_however_far_away_the_samples_are():
    features = jnp.full((1, 4), 1e5, jnp.float32)
    scores = nearest_prototype_scores(features, jnp.zeros((2, 4), jnp.float32), jnp.asarray([False, True]))
    assert jnp.isfinite(scores).all()
    assert jnp.argmax(scores, axis=1) == 1


def test_auc_over_the_present_classes_is_high_where_accuracy_is_though_a_class_is_absent_everywhere():
    rng = np.random.default_rng(6)
    centres = 6 * np.eye(4)
    y = rng.choice([0, 1, 3], size=200)
    features = centres[y] + rng.normal(size=(200, 4))
    present = np.array([True, True, False, True])
    prototypes = np.where(present[:, None], centres, np.nan)
    scores = np.asarray(nearest_prototype_scores(features, jnp.asarray(prototypes), jnp.asarray(present)))
    probability = np.asarray(jax.nn.softmax(scores, axis=1))
    assert (scores.argmax(axis=1) == y).mean() > 0.95
    for c in np.flatnonzero(present):
        assert roc_auc_score(y == c, probability[:, c]) > 0.99


def test_scores_have_a_finite_gradient_at_a_prototype_and_next_to_absent_ones():
    prototypes, present = jnp.asarray([[1.0, 1.0], [jnp.nan, jnp.nan], [1.0, 1.0]]), jnp.asarray([True, False, True])
    gradient = jax.grad(lambda z: jnp.sum(jax.nn.log_softmax(nearest_prototype_scores(z, prototypes, present))[:, 0]))(
        jnp.asarray([[1.0, 1.0]])
    )
    np.testing.assert_allclose(gradient, 0, atol=1e-12)
