"""Encoders and heads as pure functions: against NumPy, and what a key, a call and a second build must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.models import EncoderSpec, HeadSpec, apply, init
from fedjax_mm.models.networks import shapes

DTYPE = jnp.float64
DNN = EncoderSpec("dnn", (2, 3), (5, 4), 3)
NORMED = EncoderSpec("dnn_bn", (2, 3), (5, 4), 3)
HEAD = HeadSpec(3, (4,), 2)


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def fresh():
    """Spec and number of the key -> parameters and statistics, made once."""
    made = {}

    def make(spec, key=0):
        if (spec, key) not in made:
            made[spec, key] = init(spec, jax.random.key(key), DTYPE)
        return made[spec, key]

    return make


def forward(params, x):
    """The network in NumPy: linear layers in order, a ReLU between them."""
    layers = params.get("hidden", params.get("layers"))
    layers = [layers[position] for position in sorted(layers, key=int)] + ([params["last"]] if "last" in params else [])
    for position, layer in enumerate(layers):
        x = x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
        if position < len(layers) - 1:
            x = np.maximum(x, 0)
    return x


def shifted(params):
    """Parameters whose biases are not zero."""
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(tree, [leaf + rng.normal(scale=0.3, size=leaf.shape) for leaf in leaves])


def options(train=False, batch=4):
    return {"mask": jnp.ones(batch, bool), "key": jax.random.key(0), "train": train}


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_the_dnn_equals_numpy(fresh):
    x = np.random.default_rng(1).normal(size=(4, 2, 3))
    params = shifted(fresh(DNN)[0])
    out, statistics = apply(DNN, params, {}, jnp.asarray(x), dtype=DTYPE, **options())
    np.testing.assert_allclose(out, forward(params, x.reshape(4, 6)), rtol=1e-12)
    assert out.shape == (4, 3)
    assert not statistics


@pytest.mark.parametrize("widths", [(), (4,)])
def test_the_head_equals_numpy(fresh, widths):
    spec = HeadSpec(3, widths, 2)
    x = np.random.default_rng(2).normal(size=(5, 3))
    params = shifted(fresh(spec)[0])
    np.testing.assert_allclose(apply(spec, params, {}, jnp.asarray(x), dtype=DTYPE)[0], forward(params, x), rtol=1e-12)


def test_parameters_are_counted_by_hand_and_building_again_adds_none(fresh):
    hidden = (6 * 5 + 5) + (5 * 4 + 4) + (4 * 3 + 3)
    # A hidden layer in front of BatchNorm has a scale and a shift, but no bias of its own.
    for _ in range(2):
        for spec, expected in ((DNN, hidden), (NORMED, hidden + 5 + 4), (HEAD, 3 * 4 + 4 + 4 * 2 + 2)):
            params, statistics = shapes(spec, DTYPE)
            assert count(params) == expected
            assert count(statistics) == (2 * (5 + 4) if spec is NORMED else 0)
    assert count(fresh(DNN)[0]) == hidden


@pytest.mark.parametrize("spec", [DNN, NORMED, HEAD])
def test_the_same_key_gives_the_same_bits_and_another_key_others(fresh, spec):
    first, again, other = fresh(spec), init(spec, jax.random.key(0), DTYPE), fresh(spec, 1)
    for a, b in zip(leaves(first), leaves(again), strict=True):
        assert a.tobytes() == b.tobytes()
    kernels = [
        (np.asarray(a), np.asarray(b))
        for (path, a), (_, b) in zip(
            jax.tree.leaves_with_path(first[0]), jax.tree.leaves_with_path(other[0]), strict=True
        )
        if "kernel" in jax.tree_util.keystr(path)
    ]
    assert len(kernels) >= 2
    assert all((a != b).any() for a, b in kernels)


def test_layers_of_equal_shape_start_from_different_weights():
    spec = HeadSpec(4, (4, 4), 4)
    kernels = [leaf for leaf in leaves(init(spec, jax.random.key(0), DTYPE)[0]) if leaf.ndim == 2]
    assert len(kernels) == 3
    assert len({kernel.tobytes() for kernel in kernels}) == 3


def test_apply_does_not_change_what_it_is_given_even_when_statistics_move(fresh):
    params, statistics = fresh(NORMED)
    before = leaves((params, statistics))
    x = jnp.asarray(np.random.default_rng(3).normal(size=(4, 2, 3)))
    first, moved = apply(NORMED, params, statistics, x, dtype=DTYPE, **options(train=True))
    again, moved_again = apply(NORMED, params, statistics, x, dtype=DTYPE, **options(train=True))
    for kept, old in zip(leaves((params, statistics)), before, strict=True):
        assert kept.tobytes() == old.tobytes()
    np.testing.assert_array_equal(first, again)
    for a, b, old in zip(leaves(moved), leaves(moved_again), leaves(statistics), strict=True):
        assert a.tobytes() == b.tobytes()
        assert (a != old).any()


@pytest.mark.parametrize(("spec", "garbage"), [(DNN, 1e6), (NORMED, 1e6), (NORMED, np.nan)])
def test_masked_rows_change_no_output_statistic_or_gradient(fresh, spec, garbage):
    params, statistics = fresh(spec)
    x = jnp.asarray(np.random.default_rng(4).normal(size=(4, 2, 3)))
    mask = jnp.asarray([True, True, False, True])

    @jax.jit
    def run(params, x):
        out, new = apply(spec, params, statistics, x, dtype=DTYPE, mask=mask, key=jax.random.key(0), train=True)
        return jnp.sum(jnp.where(mask[:, None], jnp.sin(out), 0)), new

    outcomes = [jax.value_and_grad(run, has_aux=True)(params, x.at[2].set(value)) for value in (0, garbage)]
    # Inputs are zeroed where masked before they come here, for a linear layer's gradient is NaN if its input is.
    parts = [leaves(outcome[0] if np.isnan(garbage) else outcome) for outcome in outcomes]
    assert len(parts[0]) > 1 or spec is DNN
    for clean, dirty in zip(*parts, strict=True):
        np.testing.assert_allclose(dirty, clean, rtol=1e-12, atol=1e-14)


def test_a_vmapped_apply_equals_a_loop(fresh):
    nets = [fresh(NORMED, key) for key in range(3)]
    stacked = jax.tree.map(lambda *nodes: jnp.stack(nodes), *nets)
    x = jnp.asarray(np.random.default_rng(5).normal(size=(3, 4, 2, 3)))

    def run(net, x):
        return apply(NORMED, *net, x, dtype=DTYPE, **options(train=True))

    together = jax.vmap(run)(stacked, x)
    for position, net in enumerate(nets):
        alone = run(net, x[position])
        for a, b in zip(leaves(jax.tree.map(lambda leaf, p=position: leaf[p], together)), leaves(alone), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_equal_specs_are_one_bucket_and_print_their_shape():
    assert EncoderSpec("dnn", (2, 3), (5, 4), 3) == DNN
    assert hash(EncoderSpec("dnn", (2, 3), (5, 4), 3)) == hash(DNN)
    assert DNN != NORMED
    assert str(DNN) == "dnn 2x3-5-4-3"
    assert str(HEAD) == "mlp 3-4-2"
