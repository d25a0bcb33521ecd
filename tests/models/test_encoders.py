"""The encoders of Table 4 as pure functions: against NumPy, counted by hand, under masks; and which data they suit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.data import KINDS
from fedjax_mm.models import ENCODERS, EncoderSpec, applicable, apply, init

DTYPE = jnp.float64
SPECS = {
    "cnn1d": EncoderSpec("cnn1d", (37, 2), (6, 5), 3),
    "cnn2d": EncoderSpec("cnn2d", (11, 9, 2), (6, 5, 4), 3),
    "textcnn": EncoderSpec("textcnn", (20, 2), (6, 5), 3),
    "resmodel": EncoderSpec("resmodel", (2, 3), (6, 6, 5), 3),
    "mlp": EncoderSpec("mlp", (6, 2), (6, 5), 3),
    "one layer": EncoderSpec("mlp", (7,), (), 3),
    "ids": EncoderSpec("textcnn", (18,), (6, 5), 3, vocabulary=9),
    "flat ids": EncoderSpec("dnn", (4,), (6, 5), 3, vocabulary=9),
    "sequence of ids": EncoderSpec("cnn1d", (18,), (6, 5), 3, vocabulary=9),
}
OPTIONS = {"key": jax.random.key(0), "dtype": DTYPE}


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def fresh():
    """Name -> parameters whose biases are not zero, statistics and a batch of five inputs; made once."""
    made = {}

    def make(name):
        if name not in made:
            spec, rng = SPECS[name], np.random.default_rng(0)
            params, statistics = init(spec, jax.random.key(1), DTYPE)
            params = jax.tree.map(lambda leaf: leaf + rng.normal(scale=0.1, size=leaf.shape), params)
            shape = (5, *spec.shape)
            x = rng.integers(0, 9, shape, np.int32) if spec.vocabulary else rng.normal(size=shape)
            made[name] = params, statistics, x
        return made[name]

    return make


def convolved(x, layer, *, stride=1, reach=None):
    """Conv-bias in NumPy over one axis (`reach`: entries before and after) or two axes of a window of 3."""
    kernel, bias = np.asarray(layer["kernel"]), np.asarray(layer["bias"])
    if reach is None:
        sizes = x.shape[1:3]
        pads = [max((-(-s // stride) - 1) * stride + 3 - s, 0) for s in sizes]
        x = np.pad(x, [(0, 0), *((p // 2, p - p // 2) for p in pads), (0, 0)])
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))[:, ::stride, ::stride]
        return np.einsum("bhwcij,ijco->bhwo", windows, kernel) + bias
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), reach, (0, 0))), len(kernel), axis=1)
    return np.einsum("blcw,wco->blo", windows, kernel) + bias


def pooled(x):
    return np.stack([part.max(axis=1) for part in np.array_split(x, min(16, x.shape[1]), axis=1)], axis=1)


def relu(x):
    return np.maximum(x, 0)


def ordered(tree):
    return [tree[position] for position in sorted(tree, key=int)]


def dense(params, x):
    x = x.reshape(len(x), -1)
    for layer in ordered(params.get("hidden", {})):
        x = relu(x @ layer["kernel"] + layer["bias"])
    return x @ params["last"]["kernel"] + params["last"]["bias"]


def by_hand(spec, params, x):
    """The network in NumPy, in the order of Table 4: convolution, ReLU, pooling."""
    if spec.vocabulary:
        vectors = np.concatenate([np.zeros((1, 32)), params["vectors"]])
        params, x = params["encoder"], vectors[x]
    if spec.kind == "cnn1d":
        for layer in ordered(params["convolutions"]):
            x = pooled(relu(convolved(x, layer, reach=(2, 2))))
        return dense(params["dense"], x)
    if spec.kind == "textcnn":
        reaches = ((1, 1), (1, 2), (2, 2))
        branches = [
            pooled(relu(convolved(x, layer, reach=reach)))
            for layer, reach in zip(ordered(params["branches"]), reaches, strict=True)
        ]
        return dense(params["dense"], np.concatenate(branches, axis=-1))
    if spec.kind == "cnn2d":
        for layer, stride in zip(ordered(params["convolutions"]), (2, 1, 1), strict=True):
            x = relu(convolved(x, layer, stride=stride))
        return dense(params["dense"], x)
    if spec.kind == "resmodel":
        x = x.reshape(len(x), -1)
        for block in ordered(params["blocks"]):
            z = x @ block["linear"]["kernel"]
            z = (z - z.mean(axis=0)) / np.sqrt(z.var(axis=0) + 1e-5) * block["norm"]["scale"] + block["norm"]["bias"]
            x = relu(z) + (x @ block["skip"]["kernel"] if "skip" in block else x)
        return x @ params["last"]["kernel"] + params["last"]["bias"]
    return relu(dense(params, x)) if spec.kind == "mlp" else dense(params, x)


@pytest.mark.parametrize("name", SPECS)
def test_the_encoder_equals_numpy(name, fresh):
    params, statistics, x = fresh(name)
    out, _ = apply(SPECS[name], params, statistics, jnp.asarray(x), mask=jnp.ones(5, bool), train=True, **OPTIONS)
    np.testing.assert_allclose(out, by_hand(SPECS[name], jax.tree.map(np.asarray, params), x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cnn1d", (5 * 2 * 16 + 16) + (5 * 16 * 16 + 16) + (256 * 6 + 6) + (6 * 5 + 5) + (5 * 3 + 3)),
        # 11 by 9 is halved once, to 6 by 5.
        ("cnn2d", (9 * 2 * 16 + 16) + 2 * (9 * 256 + 16) + (480 * 6 + 6) + (6 * 5 + 5) + (5 * 4 + 4) + (4 * 3 + 3)),
        ("textcnn", 12 * 2 * 16 + 48 + (16 * 48 * 6 + 6) + (6 * 5 + 5) + (5 * 3 + 3)),
        ("mlp", (12 * 6 + 6) + (6 * 5 + 5) + (5 * 3 + 3)),
        ("one layer", 7 * 3 + 3),
        ("resmodel", (6 * 6 + 2 * 6) * 2 + (6 * 5 + 2 * 5 + 6 * 5) + (5 * 3 + 3)),
        ("flat ids", 8 * 32 + (4 * 32 * 6 + 6) + (6 * 5 + 5) + (5 * 3 + 3)),
    ],
)
def test_parameters_are_counted_by_hand(name, expected, fresh):
    assert sum(leaf.size for leaf in jax.tree.leaves(fresh(name)[0])) == expected


@pytest.mark.parametrize("name", SPECS)
def test_every_parameter_learns_and_masked_rows_teach_nothing(name, fresh):
    """Values where masked may be huge; they are zeroed before they come here, so they are finite."""
    spec, (params, statistics, x) = SPECS[name], fresh(name)
    mask = jnp.asarray([True, True, False, True, True])

    @jax.jit
    def run(params, x):
        out, new = apply(spec, params, statistics, x, mask=mask, train=True, **OPTIONS)
        return jnp.sum(jnp.where(mask[:, None], jnp.sin(out), 0)), new

    (clean, new), gradients = jax.value_and_grad(run, has_aux=True)(params, x)
    for value in (0, 3 if spec.vocabulary else 1e6):
        dirty = x.copy()
        dirty[2] = value
        outcome = jax.value_and_grad(run, has_aux=True)(params, dirty)
        for a, b in zip(jax.tree.leaves(((clean, new), gradients)), jax.tree.leaves(outcome), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    for path, gradient in jax.tree.leaves_with_path(gradients):
        assert np.isfinite(gradient).all() and (np.asarray(gradient) != 0).any(), jax.tree_util.keystr(path)


def test_the_gradient_of_an_embedding_equals_finite_differences(fresh):
    params, _, x = fresh("ids")
    spec = SPECS["ids"]

    @jax.jit
    def loss(vectors):
        out, _ = apply(
            spec, params | {"vectors": vectors}, {}, jnp.asarray(x), mask=jnp.ones(5, bool), train=True, **OPTIONS
        )
        return jnp.sum(jnp.sin(out))

    direction = np.random.default_rng(4).normal(size=params["vectors"].shape)
    expected = (loss(params["vectors"] + 1e-6 * direction) - loss(params["vectors"] - 1e-6 * direction)) / 2e-6
    found = float(np.sum(np.asarray(jax.grad(loss)(params["vectors"])) * direction))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_padding_contributes_nothing_however_the_vectors_are(fresh):
    params, statistics, _ = fresh("flat ids")
    padding = jnp.zeros((1, 4), jnp.int32)

    def out(vectors):
        new = params | {"vectors": vectors}
        return apply(SPECS["flat ids"], new, statistics, padding, mask=jnp.ones(1, bool), train=False, **OPTIONS)[0]

    np.testing.assert_array_equal(out(params["vectors"]), out(params["vectors"] * 100 + 7))
    np.testing.assert_array_equal(jax.grad(lambda v: jnp.sum(out(v)))(params["vectors"]), 0)


@pytest.mark.parametrize("kind, shape", [("cnn1d", (7,)), ("cnn1d", (20, 2)), ("cnn2d", (4, 3)), ("cnn2d", (9, 9, 2))])
def test_without_widths_convolutional_encoders_are_linear(kind, shape):
    spec = EncoderSpec(kind, shape, (), 3)
    params, statistics = init(spec, jax.random.key(1), DTYPE)
    x = np.random.default_rng(0).normal(size=(5, *shape))
    y, _ = apply(spec, params, statistics, x, mask=jnp.ones(5, bool), train=True, **OPTIONS)
    layer = params["dense"]["last"]
    np.testing.assert_allclose(y, x.reshape(5, -1) @ layer["kernel"] + layer["bias"], atol=1e-12)


def test_embeddings_start_like_standardised_inputs():
    vectors = init(EncoderSpec("dnn", (4,), (6,), 3, vocabulary=512), jax.random.key(0), DTYPE)[0]["vectors"]
    assert vectors.shape == (511, 32)
    assert abs(vectors.std() - 1) < 0.02 and abs(vectors.mean()) < 0.02


def test_each_kind_of_data_has_the_encoders_of_the_table():
    expected = {
        "image": "dnn cnn2d dnn_bn mlp",
        "language": "dnn cnn1d textcnn dnn_bn mlp",
        "audio": "dnn cnn1d resmodel dnn_bn mlp",
        "time-series": "dnn cnn1d resmodel dnn_bn mlp sensing",
        "vector": "dnn cnn1d resmodel dnn_bn mlp",
    }
    assert expected.keys() == set(KINDS)
    for kind, names in expected.items():
        assert applicable(kind, (8, 8), text=False) == tuple(names.split())
    assert applicable("image", (64,), text=False) == ("dnn", "dnn_bn", "mlp")
    assert applicable("language", (32,), text=True) == ("dnn", "cnn1d", "textcnn", "mlp")
    assert {spec.kind for spec in SPECS.values()} == set(ENCODERS) - {"dnn_bn", "sensing"}


def test_architectures_print_what_they_read():
    assert str(SPECS["ids"]) == "textcnn 18 ids-6-5-3"
    assert str(SPECS["one layer"]) == "mlp 7-3"
    assert str(SPECS["cnn2d"]) == "cnn2d 11x9x2-6-5-4-3"
