"""LG-FedAvg: the head is averaged by samples, encoders hear of others through it alone, only it is paid for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.methods import find
from fedjax_mm.models import HeadSpec
from fedjax_mm.models.networks import shapes

LgFedAvg, Local = find("lg_fedavg"), find("local")


@pytest.fixture(scope="module")
def trial(laboratory, three):
    return laboratory.run(LgFedAvg(), three)


def test_the_first_round_is_locals_with_its_heads_averaged_by_samples(laboratory, three, trial, close):
    local = laboratory.run(Local(), three)
    heads = [local.of_client("head", client, 1) for client in range(3)]
    expected = jax.tree.map(lambda *leaves: np.average(leaves, axis=0, weights=[8, 13, 19]), *heads)
    for client in range(3):
        close(trial.of_client("head", client, 1), expected)
        close(trial.of_client("encoders", client, 1), local.of_client("encoders", client, 1))


def test_encoders_hear_of_other_clients_only_through_the_head(laboratory, three, trial, same):
    rows = three.train.of(1)

    def spoiled(tables):
        return tables._replace(inputs={name: values.at[rows].multiply(-3) for name, values in tables.inputs.items()})

    other = laboratory.run(LgFedAvg(), three, tables=spoiled)
    assert same(trial.of_client("encoders", 0, 1), other.of_client("encoders", 0, 1))
    assert not same(trial.of_client("head", 0, 1), other.of_client("head", 0, 1))
    assert not same(trial.of_client("encoders", 0, 2), other.of_client("encoders", 0, 2))


def test_the_head_alone_is_sent(trial):
    numbers = (4 * 4 + 4) + (4 * 3 + 3)
    np.testing.assert_array_equal(trial.term("bytes_up"), 8 * numbers)
    np.testing.assert_array_equal(trial.term("bytes_down"), 8 * numbers)


def test_with_unlike_encoders_d_times_c_plus_c_numbers_are_sent(laboratory, three):
    engine = laboratory.build(LgFedAvg(), three, model="pool", precision="float32", dim=5)
    assert len(engine.context.stores["encoders"].networks) > 2
    for way in (*engine.upload, engine.download):
        np.testing.assert_array_equal(way.of_cohort(np.arange(3)[None], []), 3 * 4 * (5 * 3 + 3))
    params, _ = shapes(HeadSpec(512, (), 100), jnp.float32)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 51300
