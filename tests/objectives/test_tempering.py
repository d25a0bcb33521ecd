"""Flux's temperatures and losses: hand numbers, NumPy, finite differences, and masks with anything behind them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from fedjax_mm.objectives.tempering import fuse_temperatures, temperature, tempered_cross_entropy, unimodal_loss

EPSILON = 1e-6
GARBAGE = (0.0, 1e6, np.nan)


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def draw(seed, modalities=3, samples=4, classes=3):
    """Logits, log-scales, classes and masks; the last sample has no modality, the first has all."""
    rng = np.random.default_rng(seed)
    observed = rng.random((modalities, samples)) < 0.6
    observed[:, 0], observed[:, -1] = True, False
    logits, nu = rng.normal(size=(modalities, samples, classes)), rng.normal(size=(modalities, samples))
    return logits, nu, rng.integers(classes, size=samples), observed


def test_a_log_scale_of_2_log_3_is_a_temperature_of_3():
    tau = temperature(jnp.asarray([0.0, 2 * np.log(3), np.nan]), jnp.asarray([True, True, False]))
    np.testing.assert_allclose(tau, [1, 3, 1], rtol=1e-15)


@pytest.mark.parametrize(
    ("tau", "observed", "expected"),
    [
        # 1/1 + 1/1 = 2; one modality keeps its temperature; 1/4 + 1 = 5/4; none leaves epsilon alone.
        ([1.0, 1.0], [True, True], 2**-0.5),
        ([1.0, np.nan], [True, False], 1),
        ([2.0, 1.0], [True, True], 0.8**0.5),
        ([np.nan, np.nan], [False, False], EPSILON**-0.5),
    ],
)
def test_fused_temperatures_by_hand(tau, observed, expected):
    fused = fuse_temperatures(jnp.asarray(tau)[:, None], jnp.asarray(observed)[:, None], EPSILON)
    np.testing.assert_allclose(fused, [expected], rtol=2e-6)


def test_fused_temperatures_by_hand_with_an_epsilon_that_shows():
    fused = fuse_temperatures(jnp.asarray([[1.0], [2.0]]), jnp.ones((2, 1), bool), 0.5)
    np.testing.assert_allclose(fused, [(1 / 1.5 + 1 / 4.5 + 0.5) ** -0.5], rtol=1e-14)


def test_more_evidence_and_surer_evidence_lower_the_temperature():
    tau = jnp.asarray([[1.0, 1.0, 1.0], [1.0, 1.0, 3.0]])
    two, one, unsure = np.asarray(
        fuse_temperatures(tau, jnp.asarray([[True, True, True], [True, False, True]]), EPSILON)
    )
    assert two < unsure < one


def uni_oracle(logits, nu, y, observed):
    losses = []
    for b in np.flatnonzero(observed.any(axis=0)):
        held = np.flatnonzero(observed[:, b])
        losses.append(np.mean([-log_softmax(logits[m, b] / np.exp(nu[m, b] / 2))[y[b]] for m in held]))
    return np.mean(losses), len(losses)


@pytest.mark.parametrize("seed", range(4))
def test_the_unimodal_loss_is_the_mean_over_samples_of_means_over_what_they_observe(seed):
    logits, nu, y, observed = draw(seed)
    tau = temperature(jnp.asarray(nu), jnp.asarray(observed))
    value, n = unimodal_loss(jnp.asarray(logits), tau, jnp.asarray(y), jnp.asarray(observed))
    np.testing.assert_allclose((value, n), uni_oracle(logits, nu, y, observed), rtol=1e-13)


def test_the_unimodal_loss_by_hand():
    # One sample of class 0 with logits (2 log 3, 0) at temperature 2: probability 3/4. The other modality is at 1: 1/2.
    logits = jnp.asarray([[[2 * np.log(3), 0.0]], [[5.0, 5.0]]])
    value, n = unimodal_loss(logits, jnp.asarray([[2.0], [1.0]]), jnp.asarray([0]), jnp.ones((2, 1), bool))
    np.testing.assert_allclose(value, (np.log(4 / 3) + np.log(2)) / 2, rtol=1e-14)
    assert n == 1


def test_with_one_modality_and_a_log_scale_of_0_it_is_cross_entropy():
    logits, _, y, _ = draw(0, modalities=1)
    value, _ = unimodal_loss(jnp.asarray(logits), jnp.ones((1, 4)), jnp.asarray(y), jnp.ones((1, 4), bool))
    np.testing.assert_allclose(value, -log_softmax(logits[0], axis=1)[np.arange(4), y].mean(), rtol=1e-14)


def test_over_nothing_it_is_0_without_gradient():
    logits, nu, y, observed = draw(0)

    def loss(logits, nu):
        mask = jnp.zeros(observed.shape, bool)
        return unimodal_loss(logits, temperature(nu, mask), jnp.asarray(y), mask)[0]

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(jnp.asarray(logits), jnp.asarray(nu))
    assert value == 0
    assert all((np.asarray(leaf) == 0).all() for leaf in gradients)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_was_not_observed_changes_no_value_and_no_gradient(garbage):
    logits, nu, y, observed = draw(1)

    def both(logits, nu):
        tau = temperature(nu, jnp.asarray(observed))
        fused = fuse_temperatures(tau, jnp.asarray(observed), EPSILON)
        valid = jnp.any(jnp.asarray(observed), axis=0)
        private, _ = tempered_cross_entropy(logits[0], fused, jnp.asarray(y), valid)
        return unimodal_loss(logits, tau, jnp.asarray(y), jnp.asarray(observed))[0] + private

    clean = jax.value_and_grad(both, argnums=(0, 1))(jnp.asarray(logits), jnp.asarray(nu))
    valid = observed.any(axis=0)
    soiled_nu = np.where(observed, nu, garbage)
    soiled = np.where(observed[..., None], logits, garbage)
    # The private logits stand in for a head on the fused feature, which there is for every valid sample.
    soiled[0][valid] = logits[0][valid]
    again = jax.value_and_grad(both, argnums=(0, 1))(jnp.asarray(soiled), jnp.asarray(soiled_nu))
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_equal_finite_differences():
    logits, nu, y, observed = draw(2)

    def loss(logits, nu):
        tau = temperature(nu, jnp.asarray(observed))
        fused = fuse_temperatures(tau, jnp.asarray(observed), 0.1)
        private, _ = tempered_cross_entropy(logits[0], fused, jnp.asarray(y), jnp.any(jnp.asarray(observed), axis=0))
        return unimodal_loss(logits, tau, jnp.asarray(y), jnp.asarray(observed))[0] + private

    slopes = jax.grad(loss, argnums=(0, 1))(jnp.asarray(logits), jnp.asarray(nu))
    evaluate, h = jax.jit(loss), 1e-6
    for position, (values, slope) in enumerate(zip((logits, nu), slopes, strict=True)):
        for index in np.ndindex(values.shape):
            ends = []
            for sign in (1, -1):
                moved = [logits.copy(), nu.copy()]
                moved[position][index] += sign * h
                ends.append(evaluate(*map(jnp.asarray, moved)))
            np.testing.assert_allclose(slope[index], (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-9)


def test_a_tempered_loss_has_the_gradient_of_section_3_2():
    # d CE(z / tau, y) / dz = (softmax(z / tau) - e_y) / tau.
    z, tau = np.array([[1.0, -0.5, 2.0]]), np.array([0.25])
    gradient = jax.grad(lambda z: tempered_cross_entropy(z, jnp.asarray(tau), jnp.asarray([1]), jnp.ones(1, bool))[0])(
        jnp.asarray(z)
    )
    expected = (np.exp(log_softmax(z / tau[:, None], axis=1)) - [[0, 1, 0]]) / tau[:, None]
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)
