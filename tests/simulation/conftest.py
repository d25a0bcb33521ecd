"""Tiny federations, engines over them, and comparisons of states; shared by the engine's tests."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.data import from_arrays
from fedjax_mm.federation.federation import Federation
from fedjax_mm.federation.tables import index_table
from fedjax_mm.simulation.engine import build_engine
from fedjax_mm.simulation.keys import derive
from fedjax_mm.simulation.population import build_population
from fedjax_mm.simulation.settings import Settings
from fedjax_mm.simulation.stores import network_of

SIZES = {"a": 4, "b": 4, "c": 3}
FEW_ARCHITECTURES = 1870
"""A split seed under which the clients of `mixed` draw three small architectures, one of them with BatchNorm."""


def make_data(n: int = 60, *, seed: int = 0, classes: int = 3, declared: int = 4, sizes=None):
    """`n` samples of three modalities, some missing; the last of the declared classes has no sample."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    sizes = sizes or SIZES
    centres = {name: rng.normal(size=(classes, size)) for name, size in sizes.items()}
    inputs = {name: centres[name][labels] + rng.normal(size=(n, sizes[name])) for name in sizes}
    return from_arrays(inputs, labels, classes=[f"class{c}" for c in range(declared)])


def make_federation(data, holds, train, *, validation=2, test=3, missing=0.3, seed=0, split_seed=0):
    """Hands out consecutive samples: `train[k]` to learn from, then `validation` and `test`, to client k.

    A sample lacks a modality of its client with probability `missing`, but never all of them.
    """
    rng = np.random.default_rng(seed + 100)
    holds = np.asarray(holds, bool)
    parts = {"train": [], "validation": [], "test": []}
    observed = rng.random((data.size, holds.shape[1])) >= missing
    start = 0
    for client, size in enumerate(train):
        first = start
        for part, count in (("train", size), ("validation", validation), ("test", test)):
            parts[part].append(np.arange(start, start + count))
            start += count
        for sample in range(first, start):
            held = np.flatnonzero(holds[client])
            if not observed[sample, held].any():
                observed[sample, held[0]] = True
    assert start <= data.size
    return Federation(
        data=data,
        clients=tuple(f"client{k}" for k in range(len(train))),
        holds=holds,
        observed=observed,
        split_seed=split_seed,
        settings={},
        **{part: index_table(rows, data.size) for part, rows in parts.items()},
    )


def hetero(data=None):
    """Four clients: three, two, one and two modalities; 11, 5, 2 and 7 training samples."""
    data = data or make_data()
    return make_federation(
        data, [[1, 1, 1], [1, 1, 0], [0, 1, 0], [1, 0, 1]], [11, 5, 2, 7], split_seed=FEW_ARCHITECTURES
    )


def mixed():
    """Three clients of unlike encoders, 9, 5 and 2 training samples; two share an architecture across modalities."""
    return make_federation(make_data(), [[1, 1, 0], [0, 1, 0], [1, 0, 0]], [9, 5, 2], split_seed=FEW_ARCHITECTURES)


def alike(data=None):
    """Three clients of one shape, of 9, 5 and 2 training samples."""
    data = data or make_data()
    return make_federation(data, [[1, 1, 1]] * 3, [9, 5, 2])


def make_settings(federation, *, partition="m1+", **options):
    defaults = {
        "rounds": 3,
        "eval_every": 3,
        "encoders": ("dnn",),
        "dim": 3,
        "batch": 4,
        "epochs": 2,
        "lr": 0.03,
        "executor": "lockstep",
        "devices": 1,
    }
    return Settings(**(defaults | options)).resolved(partition, federation.size)


def make_engine(method, federation, **options):
    """An engine; `federation` is shared by all seeds."""
    settings = make_settings(federation, **options)
    population = build_population(settings.seeds, [federation] * len(settings.seeds))
    return build_engine(method, population, settings)


def run(engine, state=None):
    """Runs all blocks: the states' host copies after each, the blocks, and the last state."""
    state = engine.initial_state() if state is None else state
    states, blocks = [], []
    for first, length in engine.blocks():
        state, block = engine.run_block(state, first, length)
        states.append(host(state))
        blocks.append(block)
    return types.SimpleNamespace(states=states, blocks=blocks, state=state, end=states[-1])


def device(tree):
    """A fresh copy on the device, which a run may give up."""
    return jax.tree.map(jnp.array, tree)


def cohort(engine, round_, seed=0):
    """Client ids of a round, drawn again from the documented key."""
    key = jax.random.key(engine.population.seeds[seed])
    scores = np.asarray(jax.random.uniform(derive(key, "cohort", round_), (engine.context.clients,), np.float32))
    return sorted(np.argsort(scores, kind="stable")[: engine.context.cohort].tolist())


def host(tree):
    """A copy in NumPy, safe from donation."""
    return jax.tree.map(lambda leaf: np.array(leaf), tree)


def assert_blocks_agree(a, b, tolerance):
    assert_evaluations_agree(a.evaluation, b.evaluation, tolerance)
    assert a.terms.keys() == b.terms.keys()
    for name, values in a.terms.items():
        np.testing.assert_allclose(values, b.terms[name], rtol=tolerance, atol=tolerance, err_msg=name)


def assert_evaluations_agree(a, b, tolerance):
    for name in ("confusion", "bins"):
        np.testing.assert_array_equal(getattr(a.sums, name), getattr(b.sums, name), err_msg=name)
    for name in ("loss", "brier", "confidence"):
        x, y = getattr(a.sums, name), getattr(b.sums, name)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=name)
    for x, y in zip(a.subsets, b.subsets, strict=True):
        np.testing.assert_array_equal(x, y)


def named_leaves(tree):
    return [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def same_bits(a, b):
    """Names of the leaves that differ in a bit, a type or a shape."""
    return [
        name
        for (name, x), (_, y) in zip(named_leaves(a), named_leaves(b), strict=True)
        if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes()
    ]


def gap(a, b, *, whole=False):
    """Largest difference of two trees of equal structure, over the largest entry of its leaf, or of the whole tree."""
    pairs = [(name, x, y) for (name, x), (_, y) in zip(named_leaves(a), named_leaves(b), strict=True) if x.size]
    gaps, largest = [0.0], [1e-30]
    for name, x, y in pairs:
        assert x.shape == y.shape and x.dtype == y.dtype, name
        if x.dtype.kind != "f":
            assert np.array_equal(x, y), name
            continue
        assert np.isfinite(x).all() and np.isfinite(y).all(), name
        gaps.append(float(np.abs(x - y).max()))
        largest.append(max(float(np.abs(x).max()), 1e-30))
    if whole:
        return max(gaps) / max(largest)
    return max(difference / scale for difference, scale in zip(gaps, largest, strict=True))


def network(engine, state, module, seed, client, j=0, *, part="params", rows="", stores=None):
    """A client's network in a state, by the row it really uses; None where it has none."""
    store = engine.context.stores[module]
    lane = seed * engine.context.clients + client
    found = network_of(
        store, (stores or state.stores)[module], lane, j, part=part, rows=rows if rows != "params" else ""
    )
    return jax.tree.map(np.asarray, found)


def with_tables(engine, **fields):
    """The engine over other tables of equal shapes; it shares the compiled programs."""
    tables = engine.world.tables._replace(**fields)
    return dataclasses.replace(engine, world=engine.world._replace(tables=tables))


@pytest.fixture(scope="session")
def sim():
    """The helpers of this file."""
    names = (
        make_data,
        make_federation,
        hetero,
        mixed,
        alike,
        make_settings,
        make_engine,
        run,
        host,
        same_bits,
        gap,
        assert_blocks_agree,
        assert_evaluations_agree,
        network,
    )
    return types.SimpleNamespace(**{f.__name__: f for f in (*names, with_tables, named_leaves, device, cohort)})


@pytest.fixture(scope="module")
def x64():
    """64-bit floats for every test of a module that asks."""
    with jax.enable_x64(True):
        yield
