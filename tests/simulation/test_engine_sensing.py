"""The networks of Flux's sensing setting in the engine: executors agree, and what is missing is never read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.data import from_arrays
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.local import Local

OPTIONS = {"model": "shared", "encoders": ("sensing",), "fusion": "attention", "epochs": 1, "eval_every": 1}


def streams(sim, n=40, missing=0.3):
    """Three clients of 7, 5 and 2 windows of three streams, of which two have one length; some are missing."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, n)
    shapes = {"wrist": (27, 2), "chest": (27, 2), "ankle": (9, 1)}
    inputs = {name: rng.normal(size=(n, *s)) + labels[:, None, None] for name, s in shapes.items()}
    holds = [[1, 1, 1], [1, 0, 1], [0, 1, 0]]
    return sim.make_federation(from_arrays(inputs, labels), holds, [7, 5, 2], missing=missing)


@pytest.mark.marathon
def test_executors_agree(sim):
    options = OPTIONS | {"precision": "float64", "rounds": 3, "eval_every": 3, "participation": 2, "seeds": (0, 3)}
    with jax.enable_x64(True):
        runs = {}
        for executor in ("lockstep", "map"):
            engine = sim.make_engine(FedAvg(), streams(sim), executor=executor, **options)
            start = sim.host(engine.initial_state())
            runs[executor] = sim.run(engine, sim.device(start))
        moved = sim.same_bits(start.stores, runs["map"].end.stores)
        assert any("fusion" in name for name in moved) and any("convolutions" in name for name in moved)
    assert sim.gap(runs["lockstep"].end, runs["map"].end) < 1e-9
    a, b = (run.blocks[-1].evaluation for run in runs.values())
    np.testing.assert_array_equal(a.confusion, b.confusion)
    np.testing.assert_allclose(a.loss, b.loss, rtol=1e-9)


def test_what_is_missing_changes_no_bit(sim):
    """NaN and 1e6 where a sample or its client has no such stream, and where padding points."""
    federation = streams(sim)
    engine = sim.make_engine(FedAvg(), federation, rounds=1, **OPTIONS)
    start = sim.host(engine.initial_state())
    clean = sim.run(engine, sim.device(start)).end
    moved = sim.same_bits(start.stores, clean.stores)
    assert any("fusion" in name for name in moved) and any("convolutions" in name for name in moved)
    holder = np.full(len(federation.observed) + 1, -1)
    for table in (federation.train, federation.validation, federation.test):
        for k in range(3):
            holder[table.of(k)] = k
    held = np.where(holder[:-1, None] >= 0, federation.holds[holder[:-1]], False)
    missing = np.vstack([~(federation.observed & held), np.ones((1, 3), bool)])
    assert missing[:-1].any(axis=0).all() and not missing[:-1].all(axis=0).any()
    for value in (1e6, np.nan):
        inputs = {
            name: jnp.where(missing[:, j].reshape(-1, 1, 1), value, table)
            for j, (name, table) in enumerate(engine.world.tables.inputs.items())
        }
        assert not sim.same_bits(clean, sim.run(sim.with_tables(engine, inputs=inputs), sim.device(start)).end)


def test_nothing_is_dropped_in_evaluation(sim):
    """Evaluation and prediction have other keys; dropout would tell them apart."""
    federation = streams(sim, missing=0)
    engine = sim.make_engine(Local(), federation, rounds=1, **OPTIONS)
    result = sim.run(engine)
    rows = federation.test.of(0)
    inputs = {name: federation.data.inputs[name][rows] for name in federation.data.modalities}
    scores = np.asarray(engine.predict(sim.device(result.end), 0, 0, inputs)["head"], float)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(rows)), federation.data.labels[rows]]
    np.testing.assert_allclose(result.blocks[-1].evaluation.loss[0, 0, 0, 1], losses.sum(), rtol=1e-5)
