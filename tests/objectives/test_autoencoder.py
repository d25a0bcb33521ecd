"""The server autoencoder: projection, aggregation and reconstruction by hand, against NumPy, and under masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from fedjax_mm.objectives.autoencoder import aggregate, init_autoencoder, project, reconstruction


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


# Compiled once for each shape: most tests below draw many inputs of one.
project_jit, aggregate_jit, reconstruction_jit = jax.jit(project), jax.jit(aggregate), jax.jit(reconstruction)


def draw(seed, shape=(3, 2, 3, 4)):
    """Parameters, uploaded prototypes, what is held, the previous global prototypes and their validity."""
    rng = np.random.default_rng(seed)
    _, modalities, _, dim = shape
    params = {
        "encoders": {"kernel": rng.normal(size=(modalities, dim, dim // 2)), "bias": rng.normal(size=(modalities, 2))},
        "decoder": {"kernel": rng.normal(size=(dim // 2, dim)), "bias": rng.normal(size=dim)},
    }
    held, present = rng.random(shape[:3]) < 0.6, rng.random(shape[1:3]) < 0.5
    return params, rng.normal(size=shape), held, rng.normal(size=shape[1:]), present


def loss(params, uploaded, held, old, present, members=3):
    """Everything the server differentiates, in one number."""
    projected = project(params, uploaded, held)
    merged, _ = aggregate(projected, held, old, present)
    return reconstruction(projected, uploaded, held, members) + jnp.sum(jnp.sin(merged))


loss_and_slopes = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def by_hand():
    params = {
        "encoders": {"kernel": jnp.asarray([[[1.0], [1.0]], [[1.0], [-1.0]]]), "bias": jnp.asarray([[0.0], [1.0]])},
        "decoder": {"kernel": jnp.asarray([[2.0, -1.0]]), "bias": jnp.asarray([0.5, 0.0])},
    }
    # Hidden values: 3 and ReLU(-2) in modality 0, ReLU(0) and 3 in modality 1.
    prototypes = jnp.asarray([[[1.0, 2.0], [-3.0, 1.0]], [[1.0, 2.0], [3.0, 1.0]]])
    return params, prototypes, jnp.asarray([[[6.5, -3.0], [0.5, 0.0]], [[0.5, 0.0], [6.5, -3.0]]])


@pytest.mark.parametrize("dim", [1, 2, 5, 24])
def test_half_as_many_hidden_units_as_dimensions_and_at_least_one(dim):
    params = init_autoencoder(jax.random.key(0), 3, dim, jnp.float32)
    hidden = max(dim // 2, 1)
    assert jax.tree.map(jnp.shape, params) == {
        "encoders": {"kernel": (3, dim, hidden), "bias": (3, hidden)},
        "decoder": {"kernel": (hidden, dim), "bias": (dim,)},
    }
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert not params["encoders"]["bias"].any() and not params["decoder"]["bias"].any()


@pytest.mark.parametrize("modalities", [1, 40])
def test_kernels_are_uniform_with_variance_one_over_their_inputs_however_many_encoders_there_are(modalities):
    params = init_autoencoder(jax.random.key(1), modalities, 48, jnp.float64)
    for kernel, inputs in ((params["encoders"]["kernel"], 48), (params["decoder"]["kernel"], 24)):
        limit = np.sqrt(3 / inputs)
        assert 0.99 * limit < np.abs(kernel).max() <= limit
        np.testing.assert_allclose(np.var(kernel), 1 / inputs, rtol=0.1)
        np.testing.assert_allclose(np.mean(kernel), 0, atol=0.1 * limit)


def test_every_encoder_key_and_network_has_numbers_of_its_own_and_vmap_and_jit_change_none():
    keys = jax.random.split(jax.random.key(2), 3)
    stacked = jax.jit(jax.vmap(lambda key: init_autoencoder(key, 2, 6, jnp.float32)))(keys)
    for i, key in enumerate(keys):
        alone = init_autoencoder(key, 2, 6, jnp.float32)
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda leaf, i=i: leaf[i], stacked), alone)
    encoders = np.concatenate(
        [stacked["encoders"]["kernel"].reshape(6, -1), stacked["decoder"]["kernel"].reshape(3, -1)]
    )
    assert len(np.unique(encoders)) == encoders.size


def test_projection_by_hand():
    params, prototypes, expected = by_hand()
    np.testing.assert_array_equal(project(params, prototypes, jnp.ones((2, 2), bool)), expected)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_projection_equals_numpy_and_is_zero_where_not_held(seed):
    params, uploaded, held, *_ = draw(seed)
    projected = project_jit(params, uploaded, held)
    encoders, decoder = params["encoders"], params["decoder"]
    for k, m, c in np.ndindex(held.shape):
        hidden = np.maximum(uploaded[k, m, c] @ encoders["kernel"][m] + encoders["bias"][m], 0)
        exact = (hidden @ decoder["kernel"] + decoder["bias"]) * held[k, m, c]
        np.testing.assert_allclose(projected[k, m, c], exact, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("place", [np.s_[0], np.s_[None, :, None]])
def test_projection_takes_any_leading_axes(place):
    params, uploaded, held, *_ = draw(5)
    projected = project_jit(params, uploaded, held)[place]
    np.testing.assert_allclose(project_jit(params, uploaded[place], held[place]), projected, rtol=1e-13, atol=1e-14)


def test_aggregate_by_hand():
    # One modality, four classes: held by both, by the second, by nobody and valid before, by nobody and not valid.
    projected = jnp.asarray([[[[1.0], [jnp.nan], [jnp.nan], [5.0]]], [[[4.0], [6.0], [jnp.inf], [5.0]]]])
    held = jnp.asarray([[[True, False, False, False]], [[True, True, False, False]]])
    old, present = jnp.asarray([[[9.0], [9.0], [-0.1], [jnp.nan]]]), jnp.asarray([[True, False, True, False]])
    merged, valid = aggregate(projected, held, old, present)
    np.testing.assert_array_equal(merged[0, :2, 0], [2.5, 6])
    assert np.asarray(merged[0, 2:]).tobytes() == np.asarray(old[0, 2:]).tobytes()
    np.testing.assert_array_equal(valid, [[True, True, True, False]])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_aggregate_equals_numpy_permutes_with_modalities_and_classes_and_ignores_order_and_padding(seed):
    _, projected, held, old, present = draw(seed)
    merged, valid = (np.asarray(array) for array in aggregate_jit(projected, held, old, present))
    for m, c in np.ndindex(present.shape):
        mine = projected[held[:, m, c], m, c]
        np.testing.assert_allclose(merged[m, c], mine.mean(axis=0) if len(mine) else old[m, c], rtol=1e-13, atol=1e-15)
        assert valid[m, c] == (present[m, c] or len(mine) > 0)
    rng = np.random.default_rng(seed)
    k, m, c = rng.permutation(3), rng.permutation(2), rng.permutation(3)
    moved = projected[k][:, m][:, :, c], held[k][:, m][:, :, c], old[m][:, c], present[m][:, c]
    again, valid_again = aggregate_jit(*moved)
    np.testing.assert_allclose(again, merged[m][:, c], rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(valid_again, valid[m][:, c])
    wider = np.concatenate([projected, np.full_like(projected, np.nan)]), np.concatenate([held, np.zeros_like(held)])
    padded, valid_padded = aggregate_jit(*wider, old, present)
    np.testing.assert_allclose(padded, merged, rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(valid_padded, valid)


@pytest.mark.parametrize(("members", "expected"), [(2, (25 + 1 + 4) / 2), (3, (25 + 1 + 4) / 3), (0, 0)])
def test_reconstruction_by_hand(members, expected):
    projected = jnp.zeros((2, 1, 2, 2))
    uploaded = jnp.asarray([[[[3.0, 4.0], [1.0, 0.0]]], [[[0.0, -2.0], [7.0, 7.0]]]])
    held = jnp.asarray([[[True, True]], [[True, False]]])
    for count in (members, jnp.asarray(members), jnp.asarray(members, jnp.float32)):
        np.testing.assert_allclose(reconstruction(projected, uploaded, held, count), expected, rtol=1e-15)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_reconstruction_equals_numpy_and_ignores_every_order_and_padded_clients(seed):
    _, uploaded, held, old, _ = draw(seed)
    projected = uploaded - old
    value = reconstruction_jit(projected, uploaded, held, 3)
    exact = sum(np.sum(old[m, c] ** 2) for k, m, c in zip(*np.nonzero(held), strict=True)) / 3
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    rng = np.random.default_rng(seed)
    k, m, c = rng.permutation(3), rng.permutation(2), rng.permutation(3)
    moved = [array[k][:, m][:, :, c] for array in (projected, uploaded, held)]
    np.testing.assert_allclose(reconstruction_jit(*moved, 3), value, rtol=1e-12)
    nothing = np.full_like(uploaded, np.nan)
    wider = [np.concatenate(pair) for pair in ((projected, nothing), (uploaded, nothing), (held, held & False))]
    np.testing.assert_allclose(reconstruction_jit(*wider, 3), value, rtol=1e-12)


def test_gradient_in_the_parameters_equals_finite_differences():
    params, *arrays = draw(1)
    flat, unravel = ravel_pytree(params)
    steps = 1e-5 * np.eye(flat.size)
    shifted = jax.jit(jax.vmap(lambda step: loss(unravel(flat + step), *arrays)))
    _, (gradient, _) = loss_and_slopes(params, *arrays)
    numeric = (shifted(steps) - shifted(-steps)) / 2e-5
    np.testing.assert_allclose(ravel_pytree(gradient)[0], numeric, rtol=1e-5, atol=1e-8)
    assert all(np.abs(leaf).max() > 0.01 for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_not_held_reaches_neither_value_nor_gradient(garbage):
    params, uploaded, held, old, present = draw(2)
    held[:, 1, 0] = False
    dirty = np.where(held[..., None], uploaded, garbage)
    clean, spoiled = (loss_and_slopes(params, x, held, old, present) for x in (uploaded, dirty))
    jax.tree.map(np.testing.assert_array_equal, spoiled, clean)
    np.testing.assert_array_equal(spoiled[1][1][~held], 0)
    # The projections of what is not held may be anything as well, and the old prototypes where somebody holds them.
    projected = project_jit(params, uploaded, held)
    noisy = np.where(held[..., None], projected, garbage)
    noisy_old = np.where(held.any(axis=0)[..., None], garbage, old)
    merged = aggregate_jit(projected, held, old, present)
    jax.tree.map(np.testing.assert_array_equal, aggregate_jit(noisy, held, noisy_old, present), merged)
    value, gradient = jax.jit(jax.value_and_grad(reconstruction))(noisy, dirty, held, 3)
    assert value == reconstruction_jit(projected, uploaded, held, 3)
    np.testing.assert_array_equal(gradient[~held], 0)


def test_a_modality_nobody_holds_sends_no_gradient_to_its_encoder():
    params, uploaded, held, old, present = draw(3)
    held[:, 0] = False
    _, (gradient, _) = loss_and_slopes(params, uploaded, held, old, present)
    for leaf in gradient["encoders"].values():
        np.testing.assert_array_equal(leaf[0], 0)
        assert np.abs(leaf[1]).max() > 0.01


@pytest.mark.parametrize("members", [0, 3])
def test_nothing_held_is_zero_with_zero_gradient_and_keeps_the_prototypes(members):
    params, uploaded, held, old, present = draw(4)
    nothing, held = np.full_like(uploaded, np.nan), held & False
    projected = project_jit(params, nothing, held)
    assert reconstruction_jit(projected, nothing, held, members) == 0
    merged, valid = aggregate_jit(projected, held, old, present)
    assert np.asarray(merged).tobytes() == old.tobytes()
    np.testing.assert_array_equal(valid, present)
    _, slopes = loss_and_slopes(params, nothing, held, old, present, members)
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 0), slopes)


@pytest.mark.parametrize("wide", [False, True])
def test_single_precision_stays_single(wide):
    params, prototypes, expected = by_hand()
    with jax.enable_x64(wide):
        params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float32), params)
        uploaded, held = jnp.asarray(np.asarray(prototypes), jnp.float32)[None], jnp.ones((1, 2, 2), bool)
        projected = project_jit(params, uploaded, held)
        merged, _ = aggregate_jit(projected, held, jnp.zeros((2, 2, 2), jnp.float32), held[0])
        errors = [reconstruction_jit(projected, uploaded, held, n) for n in (1, np.asarray(1), np.asarray(1.0))]
        assert {x.dtype for x in (projected, merged, *errors)} == {jnp.dtype("float32")}
        np.testing.assert_array_equal(merged, expected)
