"""Local: nothing is sent, and nobody else matters."""

import jax
import pytest

from fedjax_mm.methods import find

Local = find("local")


@pytest.fixture(scope="module")
def trial(laboratory, three):
    return laboratory.run(Local(), three)


def test_nothing_is_sent(trial):
    assert (trial.term("bytes_up") == 0).all()
    assert (trial.term("bytes_down") == 0).all()
    assert not any(store.shared("params") for store in trial.engine.context.stores.values())


def test_clients_start_alike_and_modalities_apart(trial, same):
    for module in ("encoders", "head"):
        assert same(trial.of_client(module, 0, 0), trial.of_client(module, 2, 0))
    a, b = trial.of_client("encoders", 0, 0)
    for kernels in ((a["hidden"][1]["kernel"], b["hidden"][1]["kernel"]), (a["last"]["kernel"], b["last"]["kernel"])):
        assert kernels[0].shape == kernels[1].shape
        assert not same(*kernels)


def test_every_client_learns(trial, same):
    losses = trial.term("ce")
    assert (losses[1:] < losses[:-1]).all()
    for client in range(3):
        for module in ("encoders", "head"):
            assert not same(trial.of_client(module, client), trial.of_client(module, client, 0))


def assert_client_unchanged(trial, other, client, same):
    for module in ("encoders", "head"):
        assert same(trial.of_client(module, client), other.of_client(module, client))
    for before, after in zip(trial.blocks, other.blocks, strict=True):
        assert same(before.evaluation.confusion[:, :, client], after.evaluation.confusion[:, :, client])
        assert same(before.evaluation.loss[:, :, client], after.evaluation.loss[:, :, client])


def test_changing_the_data_of_others_changes_nothing(laboratory, three, trial, same):
    rows = three.train.of(1)

    def spoiled(tables):
        inputs = {name: values.at[rows].multiply(-3) for name, values in tables.inputs.items()}
        return tables._replace(inputs=inputs)

    other = laboratory.run(Local(), three, tables=spoiled)
    assert_client_unchanged(trial, other, 0, same)
    assert_client_unchanged(trial, other, 2, same)
    assert not same(trial.of_client("head", 1), other.of_client("head", 1))


def test_permuting_the_other_clients_changes_nothing(laboratory, three, trial, same):
    def permuted(tables):
        def swap(leaf):
            return leaf[jax.numpy.asarray([0, 2, 1])]

        names = ("train", "evaluated", "evaluated_n")
        info = jax.tree.map(swap, tables.info)._replace(id=tables.info.id)
        return tables._replace(info=info, **{name: swap(getattr(tables, name)) for name in names})

    other = laboratory.run(Local(), three, tables=permuted)
    assert_client_unchanged(trial, other, 0, same)
    assert not same(trial.of_client("head", 1), other.of_client("head", 1))
