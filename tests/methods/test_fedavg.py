"""FedAvg: its averages by hand, against a centralised step written down here, and where there is nothing to average."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.errors import UsageError
from fedjax_mm.methods import Layout, Method, Module, Server, Upload, find, method
from fedjax_mm.models import HeadSpec
from fedjax_mm.simulation.rounds import draw_cohort

FedAvg, Local, LgFedAvg = find("fedavg"), find("local"), find("lg_fedavg")
LR = 0.1
BIG = {"batch": 32, "epochs": 1, "rounds": 1, "lr": LR}


@pytest.mark.slow
@pytest.mark.parametrize("averaging", [FedAvg, LgFedAvg, find("fedper")])
def test_with_one_client_every_round_equals_local(laboratory, alone, averaging, close):
    trial, local = laboratory.run(averaging(), alone), laboratory.run(Local(), alone)
    for round_ in range(4):
        for module in ("encoders", "head"):
            close(trial.of_client(module, 0, round_), local.of_client(module, 0, round_))
    for ours, theirs in zip(trial.blocks, local.blocks, strict=True):
        np.testing.assert_array_equal(ours.evaluation.confusion, theirs.evaluation.confusion)
        np.testing.assert_allclose(ours.evaluation.loss, theirs.evaluation.loss, rtol=1e-12)


@method
class Scalar(Method):
    """Each client learns one number, 1 or 4, exactly; it comes to the server on every way there is."""

    weight: str = "samples"
    name: ClassVar[str] = "scalar"

    def layout(self, spec):
        scalar = Module(HeadSpec(1, (), 1), share="mean", weight=self.weight)
        return Layout({"encoders": Module(None), "head": Module(spec.head), "scalar": scalar})

    def target(self, info):
        return jnp.where(info.id == 0, 1.0, 4.0)

    def loss(self, lane):
        bias = lane.apply("scalar", jnp.zeros((1, 1)))[0, 0]
        loss = jnp.square(bias - self.target(lane.info)) / 2
        return loss, {"loss": (loss, jnp.ones(()))}

    def upload(self, start, end, sums, info, state):
        value = end["scalar"]["layers"][0]["bias"][0]
        weight = info.n if self.weight == "samples" else jnp.ones_like(info.n)
        return Upload(mean={"value": (value, weight)}, stack=value)

    def server(self, server, mean, stack, mask, key):
        value, _ = mean.extra["value"]
        ordered = jnp.where(mask, stack, 0) @ jnp.asarray([1.0, 10.0])
        one = jnp.ones(())
        return Server(mean.modules, server.state), {"extra": (value, one), "stack": (ordered, one)}


@pytest.mark.slow
@pytest.mark.parametrize(("weight", "expected"), [("samples", 3.25), ("uniform", 2.5)])
def test_1_of_one_sample_and_4_of_three_average_to_3_25(laboratory, weight, expected):
    federation = laboratory.federation([[0], [1, 2, 3]])
    trial = laboratory.run(Scalar(weight=weight), federation, **BIG | {"lr": 1.0})
    (averaged,) = trial.of_client("scalar", 0)
    np.testing.assert_array_equal(averaged["layers"][0]["bias"], [expected])
    assert trial.term("extra") == expected
    assert trial.term("stack") == 1 * 1 + 4 * 10


# --- one full-batch step, against the same step written down here


@pytest.fixture(scope="module")
def pair(laboratory):
    return laboratory.federation([np.arange(10), np.arange(10, 30)])


def standardised(tables, name, rows):
    return (tables.inputs[name][rows].astype(float) - tables.shift[name][0]) * tables.scale[name][0]


def mean_loss(params, tables, rows, has_b):
    """Cross-entropy of the shared model on some rows: the equation, with nothing of the package."""
    encoders, head = params
    z = 0
    for encoder, name, seen in zip(encoders, ("a", "b"), (np.ones(len(rows), bool), has_b), strict=True):
        x = jnp.where(seen[:, None], standardised(tables, name, rows), 0)
        for layer in (encoder["hidden"][0], encoder["hidden"][1]):
            x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
        z = z + jnp.where(seen[:, None], x @ encoder["last"]["kernel"] + encoder["last"]["bias"], 0)
    z = jax.nn.relu(z @ head["layers"][0]["kernel"] + head["layers"][0]["bias"])
    logits = z @ head["layers"][1]["kernel"] + head["layers"][1]["bias"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tables.labels[rows][:, None], axis=1))


gradient_of = jax.jit(jax.grad(mean_loss))


def model(trial, round_):
    (head,) = trial.of_client("head", 0, round_)
    return trial.of_client("encoders", 0, round_), head


def descended(params, gradient):
    return jax.tree.map(lambda p, g: p - LR * g, params, gradient)


def test_the_average_of_full_batch_steps_is_the_centralised_full_batch_step(laboratory, pair, close):
    trial = laboratory.run(FedAvg(), pair, **BIG)
    start, rows = model(trial, 0), np.arange(30)
    step = gradient_of(start, trial.engine.world.tables, rows, np.ones(30, bool))
    close(model(trial, 1), descended(start, step))
    assert all(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(step))


def test_identical_clients_leave_the_average_where_each_of_them_is(laboratory, pair, close):
    def twins(tables):
        info = jax.tree.map(lambda leaf: leaf.at[1].set(leaf[0]), tables.info)._replace(id=tables.info.id)
        return tables._replace(train=tables.train.at[1].set(tables.train[0]), info=info)

    trial = laboratory.run(FedAvg(), pair, tables=twins, **BIG)
    start = model(trial, 0)
    step = gradient_of(start, trial.engine.world.tables, np.arange(10), np.ones(10, bool))
    close(model(trial, 1), descended(start, step))


def test_an_encoder_is_averaged_by_the_samples_that_have_its_modality(laboratory, pair, close):
    # Of client 0's ten samples four have b, of client 1's twenty all: weights 4 and 20, not 10 and 20.
    has_b = np.arange(72) >= 6

    def without(tables):
        observed = tables.observed.at[0, :6, 1].set(False)
        return tables._replace(observed=observed, info=tables.info._replace(n_m=tables.info.n_m.at[0, 1].set(4)))

    trial = laboratory.run(FedAvg(), pair, tables=without, **BIG)
    start, tables = model(trial, 0), trial.engine.world.tables
    ends = [
        descended(start, gradient_of(start, tables, rows, has_b[rows])) for rows in (np.arange(10), np.arange(10, 30))
    ]
    (((a0, b0), h0), ((a1, b1), h1)) = ends
    expected = ([average(a0, a1, 10, 20), average(b0, b1, 4, 20)], average(h0, h1, 10, 20))
    close(model(trial, 1), expected)


def average(first, second, n, m):
    return jax.tree.map(lambda x, y: (n * x + m * y) / (n + m), first, second)


def test_a_cohort_without_samples_leaves_the_model_bit_for_bit(laboratory, pair, same):
    def emptied(tables):
        info = tables.info
        return tables._replace(info=info._replace(n=info.n * 0, n_m=info.n_m * 0, counts=info.counts * 0))

    trial = laboratory.run(FedAvg(), pair, tables=emptied, **BIG)
    assert same(model(trial, 1), model(trial, 0))


def test_a_client_without_samples_changes_nothing(laboratory, pair, close):
    def emptied(tables):
        info = tables.info
        emptied = {name: getattr(info, name).at[1].set(0) for name in ("n", "n_m", "counts")}
        return tables._replace(info=info._replace(**emptied))

    trial = laboratory.run(FedAvg(), pair, tables=emptied, **BIG)
    start = model(trial, 0)
    step = gradient_of(start, trial.engine.world.tables, np.arange(10), np.ones(10, bool))
    close(model(trial, 1), descended(start, step))


def test_all_parameters_of_what_a_client_has_are_sent_both_ways(laboratory, pair):
    trial = laboratory.run(FedAvg(), pair, **BIG)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(model(trial, 0)))
    assert trial.term("bytes_up") == trial.term("bytes_down") == 8 * numbers


# --- a block that nobody in the cohort holds


@pytest.mark.slow
def test_an_encoder_that_nobody_in_the_cohort_holds_stays_bit_for_bit(laboratory, same):
    federation = laboratory.federation([np.arange(10), np.arange(10, 20)], holds=[[True, False], [True, True]])
    trial = laboratory.run(FedAvg(), federation, participation=1, rounds=6, epochs=1)
    cohorts = [
        int(draw_cohort(trial.engine.context, trial.engine.world, jnp.int32(r)).clients[0, 0]) for r in range(1, 7)
    ]
    assert set(cohorts) == {0, 1}
    for round_, client in enumerate(cohorts, start=1):
        before, after = (trial.of_client("encoders", 1, r) for r in (round_ - 1, round_))
        assert not same(before[0], after[0])
        assert same(before[1], after[1]) == (client == 0)


def test_unlike_encoders_are_refused_with_the_way_out(laboratory, alone):
    federation = laboratory.federation([[0, 1], [2, 3], [4, 5], [6, 7]])
    with pytest.raises(UsageError, match=r"averages encoders.*'a'.*lg_fedavg"):
        laboratory.build(FedAvg(), federation, model="pool")
