"""What does not depend on whom: seeds, further clients, cohorts, repetition."""

import jax
import numpy as np
import pytest

from fedjax_mm.data import from_arrays
from fedjax_mm.federation import federate
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.fedproto import FedProto
from fedjax_mm.methods.local import Local

HOLDS = [[1, 1, 0], [1, 0, 0], [0, 0, 1]]
TRAIN = [6, 5, 3]
NEW_HOLDS = [[1, 1, 1], [0, 1, 0]]
NEW_TRAIN = [13, 2]


@pytest.fixture(scope="module")
def lonely(sim):
    """FedAvg with one client a round; only client 2 holds "c", only client 0 "b"."""
    federation = sim.make_federation(sim.make_data(), HOLDS, TRAIN, missing=0)
    engine = sim.make_engine(
        FedAvg(),
        federation,
        model="shared",
        partition="all",
        rounds=8,
        eval_every=1,
        epochs=1,
        participation=1,
        seeds=(0, 1),
    )
    start = sim.host(engine.initial_state())
    return engine, start, sim.run(engine, sim.device(start))


def test_an_encoder_nobody_in_the_cohort_holds_stays(lonely, sim):
    engine, before, result = lonely
    kept = 0
    for round_, after in enumerate(result.states, 1):
        for s in range(2):
            (member,) = sim.cohort(engine, round_, s)
            for j in range(3):
                holder = int(np.flatnonzero(np.asarray(HOLDS)[:, j])[0])
                nets = [sim.network(engine, state, "encoders", s, holder, j) for state in (before, after)]
                assert bool(sim.same_bits(*nets)) == bool(HOLDS[member][j]), (round_, s, j)
                kept += not HOLDS[member][j]
        before = after
    assert kept > 0


def test_cohorts_have_the_size_asked_for_and_differ(lonely, sim):
    """Everyone is drawn sooner or later; two seeds draw differently, and so do two rounds."""
    engine, _, result = lonely
    drawn = np.array([[sim.cohort(engine, r, s)[0] for r in range(1, 9)] for s in range(2)])
    before = np.zeros((2, 3), bool)
    for state, members in zip(result.states, drawn.T, strict=True):
        before[range(2), members] = True
        np.testing.assert_array_equal(state.participated.reshape(2, 3), before)
    assert (drawn[0] != drawn[1]).any() and all(len(set(row)) > 1 for row in drawn)
    costs = [block.terms["bytes_up"] for block in result.blocks]
    assert all((weight == 1).all() for _, weight in costs), "one member a round"


def test_the_same_run_twice_gives_the_same_bits(lonely, sim):
    engine, start, result = lonely
    again = sim.run(engine, sim.device(start))
    assert not sim.same_bits(result.end, again.end)
    for a, b in zip(result.blocks, again.blocks, strict=True):
        np.testing.assert_array_equal(a.evaluation.confusion, b.evaluation.confusion)
        np.testing.assert_array_equal(a.evaluation.loss, b.evaluation.loss)
        for name, values in a.terms.items():
            np.testing.assert_array_equal(values, b.terms[name])


def test_predictions_are_those_the_evaluation_counted(lonely, sim):
    engine, _, result = lonely
    federation = engine.population.federations[0]
    state = sim.device(result.end)
    for s, k in ((0, 0), (1, 1)):
        rows = federation.test.of(k)
        held = [m for m, holds in zip(federation.data.modalities, federation.holds[k], strict=True) if holds]
        scores = engine.predict(state, s, k, {m: federation.data.inputs[m][rows] for m in held})["head"]
        confusion = np.zeros((4, 4), int)
        np.add.at(confusion, (federation.data.labels[rows], scores.argmax(axis=1)), 1)
        np.testing.assert_array_equal(confusion, result.blocks[-1].evaluation.confusion[0, s, k, 1])


def test_initial_weights(sim):
    """Same seed, same bits; another seed, modality or (in a pool) client, other weights, even in one shape."""
    data = sim.make_data()
    federation = sim.make_federation(data, [[1, 1, 1], [1, 1, 1]], [5, 5])
    engine = sim.make_engine(FedAvg(), federation, model="shared", partition="all", seeds=(0, 1))
    first, again = (sim.host(engine.initial_state()) for _ in range(2))
    assert not sim.same_bits(first, again)
    kernels = {
        (s, j): sim.network(engine, first, "encoders", s, 0, j)["hidden"][0]["kernel"]
        for s in range(2)
        for j in range(2)
    }
    values = list(kernels.values())
    assert all(values[0].shape == v.shape for v in values), '"a" and "b" share a shape'
    assert all(np.abs(v - w).max() > 1e-3 for i, v in enumerate(values) for w in values[:i])


@pytest.mark.slow
def test_a_seed_alone_equals_itself_among_others(sim):
    options = {"model": "shared", "partition": "all", "participation": 2, "precision": "float64"}
    with jax.enable_x64(True):
        together = sim.make_engine(FedProto(), sim.hetero(), seeds=(0, 1, 2), **options)
        alone = sim.make_engine(FedProto(), sim.hetero(), seeds=(1,), **options)
        a, b = sim.run(together), sim.run(alone)
        for k in range(4):
            for module, j in (("head", 0), ("encoders", 0), ("encoders", 1), ("encoders", 2)):
                nets = [sim.network(e, r.end, module, s, k, j) for e, r, s in ((together, a, 1), (alone, b, 0))]
                assert (nets[0] is None) == (nets[1] is None)
                assert nets[0] is None or sim.gap(*nets) < 1e-9
        assert sim.gap(jax.tree.map(lambda leaf: leaf[1:2], a.end.server), b.end.server) < 1e-9
        x, y = a.blocks[-1].evaluation, b.blocks[-1].evaluation
        np.testing.assert_array_equal(x.confusion[:, 1], y.confusion[:, 0])
        assert (x.confusion[:, 0] != x.confusion[:, 1]).any(), "seeds differ"


def grown(sim, data):
    """A federation, and the same with two more clients, one of them larger than all others."""
    small = sim.make_federation(data, HOLDS, TRAIN, missing=0)
    large = sim.make_federation(data, HOLDS + NEW_HOLDS, TRAIN + NEW_TRAIN, missing=0)
    return small, large


@pytest.mark.slow
def test_more_clients_keep_the_first_ones_sets_architectures_and_weights(sim):
    rng = np.random.default_rng(0)
    inputs = {"a": rng.normal(size=(240, 4)), "b": rng.normal(size=(240, 4)), "c": rng.normal(size=(240, 3))}
    data = from_arrays(inputs, rng.integers(0, 3, 240))
    pair = [federate(data, partition="m1+", clients=k, alpha="iid", split_seed=5) for k in (3, 5)]
    np.testing.assert_array_equal(pair[0].holds, pair[1].holds[:3])
    engines = [sim.make_engine(Local(), f, seeds=(3,), encoders=("dnn", "dnn_bn")) for f in pair]
    states = [sim.host(engine.initial_state()) for engine in engines]
    for k in range(3):
        for module, columns in (("head", 1), ("encoders", 3)):
            for j in range(columns):
                specs = [e.context.stores[module].network[k, j] for e in engines]
                specs = [
                    e.context.stores[module].networks[p] if p >= 0 else None
                    for e, p in zip(engines, specs, strict=True)
                ]
                assert specs[0] == specs[1]
                nets = [sim.network(e, s, module, 0, k, j) for e, s in zip(engines, states, strict=True)]
                assert nets[0] is None or sim.gap(*nets) < 1e-6


@pytest.mark.slow
def test_more_clients_keep_the_first_ones_training(sim):
    """Local training of the first clients is the same although all tables are wider.

    Standardisation is the federation's and would move with the new clients' samples; it is held fixed here.
    """
    data = sim.make_data()
    pair = grown(sim, data)
    with jax.enable_x64(True):
        engines = [
            sim.make_engine(Local(), f, model="shared", partition="all", precision="float64", seeds=(3,), rounds=2)
            for f in pair
        ]
        assert engines[0].world.tables.train.shape[1] < engines[1].world.tables.train.shape[1]
        fixed = engines[0].world.tables
        engines[1] = sim.with_tables(engines[1], shift=fixed.shift, scale=fixed.scale)
        results = [sim.run(engine) for engine in engines]
        for k in range(3):
            for module, columns in (("head", 1), ("encoders", 3)):
                for j in range(columns):
                    nets = [sim.network(e, r.end, module, 0, k, j) for e, r in zip(engines, results, strict=True)]
                    assert nets[0] is None or sim.gap(*nets) < 1e-9
        counts = [r.blocks[-1].evaluation.confusion[:, :, :3] for r in results]
        np.testing.assert_array_equal(*counts)
