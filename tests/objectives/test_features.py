"""Alignment of feature prototypes: values by hand, NumPy, finite differences, masks of classes and of modalities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.errors import UsageError
from fedjax_mm.objectives.features import align_features

OPTIONS = [{"norm": norm, "class_mean": mean} for norm in ("sum", "mean") for mean in ("all", "present")]

# Compiled once for each shape and choice: most tests below draw many inputs of one.
align_jit = jax.jit(align_features, static_argnames=("norm", "class_mean"))
align_and_slope = jax.jit(jax.value_and_grad(align_features, argnums=(0, 1)), static_argnames=("norm", "class_mean"))


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def draw(seed, modalities=3, classes=4, dim=2):
    rng = np.random.default_rng(seed)
    local, target = rng.normal(size=(2, modalities, classes, dim))
    return local, target, rng.random((modalities, classes)) < 0.6, rng.random(modalities) < 0.7


def oracle(local, target, both, modalities, norm, class_mean):
    values = []
    for m in np.flatnonzero(modalities):
        distances = [np.sum((target[m, c] - local[m, c]) ** 2) for c in np.flatnonzero(both[m])]
        divisor = local.shape[1] if class_mean == "all" else max(len(distances), 1)
        values.append(sum(distances) / divisor / (local.shape[2] if norm == "mean" else 1))
    return np.mean(values) if values else 0


@pytest.mark.parametrize(
    ("norm", "class_mean", "modalities", "expected"),
    [
        ("sum", "all", [True, True], ((25 + 1) / 2 + 4 / 2) / 2),
        ("mean", "all", [True, True], ((12.5 + 0.5) / 2 + 2 / 2) / 2),
        ("sum", "present", [True, True], ((25 + 1) / 2 + 4) / 2),
        ("mean", "present", [True, True], ((12.5 + 0.5) / 2 + 2) / 2),
        ("sum", "all", [True, False], (25 + 1) / 2),
        ("sum", "present", [False, True], 4),
    ],
)
def test_two_modalities_and_two_classes_by_hand(norm, class_mean, modalities, expected):
    local = jnp.asarray([[[1.0, 1.0], [0.0, 0.0]], [[0.0, 5.0], [7.0, 7.0]]])
    target = jnp.asarray([[[4.0, 5.0], [1.0, 0.0]], [[0.0, 3.0], [0.0, 0.0]]])
    both = jnp.asarray([[True, True], [True, False]])
    assert align_features(local, target, both, jnp.asarray(modalities), norm=norm, class_mean=class_mean) == expected


def test_a_held_modality_without_a_common_class_adds_nothing_but_is_counted():
    both = jnp.asarray([[True], [False]])
    for class_mean in ("all", "present"):
        value = align_features(
            jnp.zeros((2, 1, 2)), jnp.full((2, 1, 2), 2.0), both, jnp.ones(2, bool), class_mean=class_mean
        )
        assert value == 8 / 2


@given(st.integers(0, 2**32 - 1), st.sampled_from(OPTIONS))
@settings(max_examples=40, deadline=None)
def test_equals_numpy_and_ignores_the_order_of_classes_and_modalities(seed, options):
    local, target, both, modalities = draw(seed)
    value = align_jit(local, target, both, modalities, **options)
    np.testing.assert_allclose(value, oracle(local, target, both, modalities, **options), rtol=1e-13)
    rng = np.random.default_rng(seed)
    m, c = rng.permutation(3), rng.permutation(4)
    moved = local[m][:, c], target[m][:, c], both[m][:, c], modalities[m]
    np.testing.assert_allclose(align_jit(*moved, **options), value, rtol=1e-13)


@pytest.mark.parametrize("options", OPTIONS)
def test_gradient_equals_finite_differences_and_is_zero_at_targets_and_behind_masks(options):
    local, target, both, _ = draw(1)
    both[0, :2], modalities = (True, False), np.array([True, False, True])
    _, (to_local, to_target) = align_and_slope(local, target, both, modalities, **options)
    steps = 1e-5 * np.eye(local.size).reshape(-1, *local.shape)
    value = jax.jit(jax.vmap(lambda step: align_features(local + step, target, both, modalities, **options)))
    numeric = (value(steps) - value(-steps)) / 2e-5
    np.testing.assert_allclose(to_local, numeric.reshape(local.shape), rtol=1e-5, atol=1e-10)
    live = both & modalities[:, None]
    assert np.abs(np.asarray(to_local)[live]).min() > 1e-4
    np.testing.assert_array_equal(np.asarray(to_local)[~live], 0)
    np.testing.assert_array_equal(to_target, 0)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("options", OPTIONS)
def test_what_stands_behind_a_mask_reaches_neither_value_nor_gradient(garbage, options):
    local, target, both, _ = draw(2)
    modalities = np.array([False, True, True])
    spoil = np.where((both & modalities[:, None])[..., None], 0, garbage)
    clean = align_and_slope(local, target, both, modalities, **options)
    dirty = align_and_slope(local + spoil, target + spoil, both, modalities, **options)
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)
    # A class of a modality that the client does not hold is not in both, whatever the mask says.
    both[0] = True
    jax.tree.map(np.testing.assert_array_equal, align_and_slope(local, target, both, modalities, **options), clean)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("held", [False, True])
def test_over_nothing_it_is_zero_with_zero_gradient(options, held):
    nothing = np.full((3, 4, 2), np.nan)
    result = align_and_slope(nothing, nothing, np.full((3, 4), not held), np.full(3, held), **options)
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 0), result)


def test_at_the_target_itself_value_and_gradient_are_zero():
    local, _, both, _ = draw(3)
    result = align_and_slope(local, local, both, np.ones(3, bool))
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 0), result)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("wide", [False, True])
def test_single_precision_stays_single(options, wide):
    local, target, both, modalities = draw(4)
    exact = oracle(local, target, both, modalities, **options)
    with jax.enable_x64(wide):
        singles = local.astype(np.float32), target.astype(np.float32)
        value, (gradient, _) = align_and_slope(*singles, both, modalities, **options)
        assert value.dtype == gradient.dtype == jnp.float32
        np.testing.assert_allclose(value, exact, rtol=1e-6)


@pytest.mark.parametrize("options", [{"norm": "l2"}, {"class_mean": "some"}])
def test_an_unknown_option_is_refused(options):
    with pytest.raises(UsageError, match=r"unknown (norm 'l2'|class mean 'some')"):
        align_features(jnp.zeros((1, 2, 2)), jnp.zeros((1, 2, 2)), jnp.ones((1, 2), bool), jnp.ones(1, bool), **options)
