"""Every kind of encoder in the engine: on real data of the kinds it suits, under masks, by every executor."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.data import from_arrays, load_data
from fedjax_mm.data.text import LENGTH, VOCABULARY, hash_text
from fedjax_mm.errors import UsageError
from fedjax_mm.federation import federate
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.local import Local
from fedjax_mm.models import EncoderSpec
from fedjax_mm.runs import simulate
from fedjax_mm.simulation.population import build_population, read_inputs
from fedjax_mm.simulation.stores import encoder_architectures

REAL = [
    ("dnn", "mfeat", "zernike"),
    ("cnn1d", "mfeat", "fourier"),
    ("resmodel", "mfeat", "zernike"),
    ("cnn2d", "avdigits", "image"),
    ("resmodel", "avdigits", "audio"),
    ("cnn1d", "spar", "gyroscope"),
    ("cnn2d", "emoji", "noto"),
    ("textcnn", "emoji", "text_en"),
    ("cnn1d", "emoji", "text_fr"),
    ("textcnn", "reuters1200", "english"),
]
ONCE = [("dnn", "mfeat", "zernike"), ("cnn1d", "mfeat", "fourier"), ("resmodel", "avdigits", "audio")]
ONCE += [("cnn2d", "avdigits", "image"), ("textcnn", "emoji", "text_en")]
"""Each kind once."""
WORDS = np.array(["red car", "blue sky", "green leaf", "old red brick house", "sky", ""])


def only(data, modality, rows):
    """The data set with one modality and some of its samples."""
    column = data.modalities.index(modality)
    parts = {
        "inputs": {modality: data.inputs[modality][rows]},
        "kinds": {modality: data.kinds[modality]},
        "observed": data.observed[rows, column : column + 1],
        "labels": data.labels[rows],
    }
    return dataclasses.replace(data, **parts, client=None, order=None, group=None, other_labels={})


def everything(n=70):
    """A modality for each kind of data, some samples without some of them."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, n)
    inputs = {
        "image": rng.integers(0, 256, (n, 9, 9, 1)).astype(np.uint8),
        "words": WORDS[(labels + 3 * (rng.random(n) < 0.3)) % 6],
        "sound": rng.normal(size=(n, 18, 2)) + labels[:, None, None],
        "vector": rng.normal(size=(n, 5)) + labels[:, None],
    }
    return from_arrays(inputs, labels, kinds={"sound": "audio"})


GROUPS = [("cnn2d", "textcnn", "resmodel"), ("cnn1d", "dnn")]
"""Kinds of a shared model: each modality has the first that applies, so that all five are run."""


def two_clients(sim):
    """Two clients with everything; the second has too few samples for a whole batch."""
    return sim.make_federation(everything(), [[1, 1, 1, 1]] * 2, [9, 2], missing=0.3)


def architectures(federation, sim, **options):
    """The architecture of each client's encoder for each modality."""
    settings = sim.make_settings(federation, **options)
    specs, bucket = encoder_architectures(build_population((0,), [federation]), settings)
    return [[specs[position] if position >= 0 else None for position in row] for row in bucket]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "modality"),
    [pytest.param(*case, marks=() if case in ONCE else pytest.mark.marathon) for case in REAL],
)
def test_each_kind_learns_from_real_data(kind, name, modality, sim, shared_data):
    data = load_data(name if name == "mfeat" else shared_data(name))
    rows = np.random.default_rng(0).permutation(data.size)[:160]
    data = only(data, modality, rows)
    federation = federate(data, partition="all", clients=2, alpha="iid")
    options = {"rounds": 12, "eval_every": 12, "batch": 12, "dim": 16, "optimizer": "adam", "lr": 0.003}
    engine = sim.make_engine(Local(), federation, encoders=(kind,), model="pool", **options)
    assert {spec.kind for spec in engine.context.stores["encoders"].networks} == {kind}
    start = sim.host(engine.initial_state())
    result = sim.run(engine, sim.device(start))
    total, weight = result.blocks[0].terms["ce"]
    loss = np.asarray(total / weight).reshape(-1)
    assert np.isfinite(loss).all() and loss[-1] < 0.8 * loss[0], loss
    # Without decay a parameter moves if and only if a gradient was not 0.
    for (path, before), (_, after) in zip(
        *(jax.tree.leaves_with_path([v["params"] for v in s.stores["encoders"]]) for s in (start, result.end)),
        strict=True,
    ):
        assert np.isfinite(after).all() and (before != after).any(), jax.tree_util.keystr(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "executor"), [(GROUPS[1], "map"), pytest.param(GROUPS[0], "debug", marks=pytest.mark.marathon)]
)
def test_executors_agree_for_each_kind(kinds, executor, sim):
    options = {"encoders": kinds, "model": "shared", "precision": "float64", "rounds": 2, "eval_every": 2, "epochs": 1}
    with jax.enable_x64(True):
        runs = {
            name: sim.run(sim.make_engine(Local(), two_clients(sim), executor=name, **options))
            for name in ("lockstep", executor)
        }
    assert sim.gap(runs["lockstep"].end, runs[executor].end) < 1e-9
    a, b = (runs[e].blocks[-1].evaluation.confusion for e in ("lockstep", executor))
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [GROUPS[0], pytest.param(GROUPS[1], marks=pytest.mark.marathon)])
def test_what_is_masked_changes_no_bit(kinds, sim):
    """NaN, 1e6 and ids of other words behind every mask, and where padding points."""
    federation = two_clients(sim)
    engine = sim.make_engine(FedAvg(), federation, encoders=kinds, model="shared", rounds=1, eval_every=1, epochs=1)
    start = sim.host(engine.initial_state())
    clean = sim.run(engine, sim.device(start)).end
    assert sim.same_bits(start.stores, clean.stores), "it does train"
    mask = np.vstack([~federation.observed, np.ones((1, 4), bool)])
    for value in (1e6, np.nan):
        inputs = {}
        for j, (name, table) in enumerate(engine.world.tables.inputs.items()):
            wrong = jnp.asarray(value if table.dtype.kind == "f" else 77, table.dtype)
            inputs[name] = jnp.where(mask[:, j].reshape(-1, *[1] * (table.ndim - 1)), wrong, table)
        assert not sim.same_bits(clean, sim.run(sim.with_tables(engine, inputs=inputs), sim.device(start)).end)


def test_text_is_read_as_ids_and_numbers_are_not(sim):
    federation = two_clients(sim)
    tables = build_population((0,), [federation]).tables
    rows = federation.train.of(0)[:4]
    mask = jnp.asarray(federation.observed[rows, 1])
    read = read_inputs(tables, "words", jnp.int32(0), jnp.asarray(rows), mask, jnp.float32)
    expected = np.where(np.asarray(mask)[:, None], hash_text(federation.data.inputs["words"][rows]), 0)
    assert read.dtype == jnp.int32 and mask.any()
    np.testing.assert_array_equal(read, expected)
    assert set(tables.scale) == {"image", "sound", "vector"}
    counts = dataclasses.replace(federation.data, kinds=dict(federation.data.kinds) | {"vector": "language"})
    tables = build_population((0,), [dataclasses.replace(federation, data=counts)]).tables
    assert tables.inputs["vector"].dtype == jnp.float32 and "vector" in tables.scale


def test_text_that_is_not_observed_is_never_read(sim):
    federation = two_clients(sim)
    absent = ~federation.observed[:, 1]
    words = np.where(absent, "something else \0", federation.data.inputs["words"])
    other = dataclasses.replace(federation.data, inputs=dict(federation.data.inputs) | {"words": words})
    tables = [
        np.asarray(build_population((0,), [dataclasses.replace(federation, data=data)]).tables.inputs["words"])
        for data in (federation.data, other)
    ]
    np.testing.assert_array_equal(*tables)
    assert absent.any() and not tables[0][np.append(absent, True)].any()


def test_the_pool_gives_each_modality_what_suits_it(sim):
    federation = sim.make_federation(everything(400), [[1, 1, 1, 1]] * 40, [2] * 40, validation=1, test=1)
    drawn = architectures(federation, sim, encoders=None, model="pool")
    assert [{spec.kind for spec in column} for column in zip(*drawn, strict=True)] == [
        {"dnn", "cnn2d"},
        {"dnn", "cnn1d", "textcnn"},
        {"dnn", "cnn1d", "resmodel"},
        {"dnn", "cnn1d", "resmodel"},
    ]
    assert {(row[1].shape, row[1].vocabulary) for row in drawn} == {((LENGTH,), VOCABULARY)}
    few = architectures(federation, sim, encoders=None, model="pool", pool_size=2)
    assert [len(set(column)) for column in zip(*few, strict=True)] == [2, 2, 2, 2]


def test_the_shared_model_takes_the_first_kind_that_applies(sim):
    federation = two_clients(sim)
    plain = architectures(federation, sim, encoders=None, model="shared")
    assert {spec.kind for row in plain for spec in row} == {"dnn"}
    mixed = architectures(federation, sim, encoders=GROUPS[0], model="shared")
    assert [spec.kind for spec in mixed[0]] == ["cnn2d", "textcnn", "resmodel", "resmodel"]
    assert mixed[0] == mixed[1] and mixed[0][0] == EncoderSpec("cnn2d", (9, 9, 1), (128, 64), 3)


def test_a_modality_without_a_kind_is_refused_with_those_that_would_do(sim):
    federation = sim.make_federation(everything(), [[1, 0, 0, 0], [0, 1, 0, 0]], [4, 4])
    with pytest.raises(UsageError, match=r"encoders is cnn1d,resmodel, none .*'image' \(image, 9x9x1\); dnn, cnn2d, "):
        architectures(federation, sim, encoders=("cnn1d", "resmodel"), model="pool")
    with pytest.raises(UsageError, match=r"'words' \(text, 32\); dnn, cnn1d, textcnn, mlp would"):
        architectures(federation, sim, encoders=("cnn2d", "dnn_bn"), model="shared")
    held = sim.make_federation(everything(), [[1, 0, 0, 0]] * 2, [4, 4])
    assert architectures(held, sim, encoders=("cnn2d",), model="pool")[0][1:] == [None] * 3, "nobody holds the others"


@pytest.mark.parametrize("options", [{"pool_size": 0}, {"pool_size": -3}, {"encoders": ()}])
def test_settings_out_of_range_are_refused(options, sim):
    (name,) = options
    with pytest.raises(UsageError, match=f"{name} is .*, must be at least"):
        sim.make_settings(two_clients(sim), **options)


def test_a_client_predicts_for_strings_as_for_the_texts_of_the_data():
    words = np.array(
        [f"{colour} {thing}" for colour in ("red", "green", "blue") for thing in ("cup", "hat", "tree")] * 6
    )
    data = from_arrays({"text": words, "numbers": np.ones((54, 2))}, np.arange(54) % 9 // 3)
    run = simulate("local", federate(data, partition="all", clients=2), rounds=1, model="shared")
    scores = run.predict(0, {"text": np.array(["red cup", "", "RED  cup", "blau"])})["head"]
    np.testing.assert_array_equal(scores[0], scores[2])
    assert np.isfinite(scores).all()
    assert not np.array_equal(scores[0], scores[3])
    with pytest.raises(UsageError, match="text"):
        run.predict(0, {"text": np.array([["red", "cup"]])})
