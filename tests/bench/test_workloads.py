"""What is timed: the workloads as the table of the benchmark defines them."""

import dataclasses

import numpy as np
import pytest

from fedjax_mm import methods
from fedjax_mm.bench.workloads import W1, W2, W3, W3S, W4, WORKLOADS, architectures, make_federation
from fedjax_mm.simulation.engine import build_engine
from fedjax_mm.simulation.population import build_population
from fedjax_mm.simulation.settings import Settings


def small(workload, pool=200):
    return dataclasses.replace(workload, pool=pool)


def test_clients_share_the_pool_without_replacement_as_long_as_it_lasts():
    few = make_federation(small(W1), 2).train.rows
    assert few.shape == (2, 80)
    assert len(np.unique(few)) == 160
    many = make_federation(small(W1), 7).train.rows
    assert many.max() < 200
    for row in many:
        assert len(np.unique(row)) == 80
    np.testing.assert_array_equal(many[:2], few)
    assert len({row.tobytes() for row in many}) == 7


def test_the_same_arguments_give_the_same_federation_and_nothing_is_trained_and_tested_on():
    one, two = make_federation(small(W3), 8), make_federation(small(W3), 8)
    for name in one.data.inputs:
        np.testing.assert_array_equal(one.data.inputs[name], two.data.inputs[name])
    np.testing.assert_array_equal(one.train.rows, two.train.rows)
    parts = [np.unique(table.rows) for table in (one.train, one.validation, one.test)]
    assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
    assert [one.table(name).rows.shape[1] for name in ("train", "validation", "test")] == [72, 1, 1]
    assert set(one.data.labels) == set(range(W3.classes))
    assert one.holds.any(axis=1).all() and not one.holds.all()


def engine(workload, clients, pool=200):
    workload = small(workload, pool)
    federation = make_federation(workload, clients)
    settings = Settings(**{"model": "pool", **workload.settings}).resolved(workload.partition, clients)
    population = build_population((0,), [federation])
    return build_engine(methods.find(workload.method)(**workload.options), population, settings)


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (W1, {"mlp 784-128"}),
        (W2, {"mlp 784-64", "mlp 784-128-64", "mlp 784-256-128-64"}),
    ],
    ids=["W1", "W2"],
)
def test_the_networks_are_those_of_the_table(workload, expected):
    stores = engine(workload, 12).context.stores
    assert {str(spec) for spec in stores["encoders"].networks} == expected
    assert [str(spec) for spec in stores["head"].networks] == [f"mlp {workload.settings['dim']}-{workload.classes}"]


@pytest.mark.parametrize("workload", [W1, W2, W3], ids=lambda workload: workload.name)
def test_the_references_get_the_encoders_that_the_engine_draws(workload):
    store = engine(workload, 9).context.stores["encoders"]
    found = architectures(workload, 9)
    for client, row in enumerate(store.network):
        expected = {
            m: (*store.networks[b].shape, *store.networks[b].widths, store.networks[b].dim)
            for m, b in enumerate(row)
            if b >= 0
        }
        assert found[client] == expected


def test_streams_have_one_encoder_each_attention_and_a_head_of_two_layers():
    stores = engine(W4, 2, pool=192).context.stores
    assert [str(spec) for spec in stores["encoders"].networks] == ["sensing 200x3-96"]
    assert [str(spec) for spec in stores["head"].networks] == ["mlp 96-96-12"]
    assert [str(spec) for spec in stores["fusion"].networks] == ["attention 96-96"]


def test_a_block_is_as_many_rounds_as_it_takes_to_be_timed():
    assert [W1.rounds(k, 1) for k in (10, 100, 1000, 10_000)] == [20, 10, 1, 1]
    assert [W3.rounds(20, seeds) for seeds in (1, 5, 20)] == [10, 2, 1]
    assert W3S.options["server_steps"] == 10
    assert WORKLOADS["W5"].seeds == (1, 5, 20)
