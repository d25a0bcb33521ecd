"""First layers trained in the span of their samples: the same kernels as trained by themselves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.fedprox import FedProx
from fedjax_mm.methods.mfedpba import MFedPBA
from fedjax_mm.methods.moon import Moon
from fedjax_mm.simulation import narrow
from fedjax_mm.simulation.forward import gather_crowd, read, see
from fedjax_mm.simulation.span import Span, gram, kernel_of, outputs_at, pays

STREAM = {"batch": 4, "widths": ((3,), (), (2, 3)), "encoders": ("dnn", "mlp")}


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_sgd_on_coefficients_is_sgd_on_kernels(data):
    """Steps on batches with repeated samples and padding, against NumPy on whole kernels."""
    n, inputs, outputs, steps = (data.draw(st.integers(1, 5), label=name) for name in ("n", "in", "out", "steps"))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, kernel = rng.normal(size=(2, n, inputs)), rng.normal(size=(2, inputs, outputs))
    expected, lr = kernel.copy(), 0.1
    with jax.enable_x64(True):
        span = Span(gram(jnp.asarray(x)), {"current": jnp.asarray(x @ kernel)})
        coefficients = jnp.zeros((2, n, outputs))
        for _ in range(steps):
            places = rng.integers(0, n + 1, size=(2, 3))  # n is padding
            valid, slope = places < n, rng.normal(size=(2, 3, outputs))

            def loss(d, places=places, valid=valid, slope=slope):
                y = outputs_at(span, "current", d, jnp.asarray(places))
                return jnp.sum(jnp.where(valid[..., None], slope * jnp.sin(y), 0)), y

            (_, y), gradient = jax.value_and_grad(loss, has_aux=True)(coefficients)
            coefficients = coefficients - lr * gradient
            for slot in range(2):
                rows = x[slot, places[slot][valid[slot]]]
                z = rows @ expected[slot]
                np.testing.assert_allclose(y[slot][valid[slot]], z, atol=1e-12)
                expected[slot] -= lr * rows.T @ (slope[slot][valid[slot]] * np.cos(z))
            assert np.isfinite(y).all()
        found = kernel_of(jnp.asarray(kernel), jnp.asarray(x), coefficients)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def spanned(engine):
    """How many encoder buckets of each plan are trained in the span of their samples."""
    ways = [way for rounds in engine.rounds for trainer in rounds.trainers.values() for way in trainer.ways]
    return [sum(narrowing.spanned) for narrowing, _ in ways]


CASES = {
    # A shared model, whose batches have padding and whose clients differ in size.
    "averaged": (FedAvg(), "alike", {"model": "shared", "encoders": ("mlp",), "momentum": 0.5}),
    # Frozen views, and clients absent from the first round.
    "views": (Moon(), "alike", {"model": "shared", "encoders": ("dnn",), "participation": 2}),
    # Own encoders of several depths and widths, prototypes collected after training.
    "pool": (MFedPBA(server_steps=1), "hetero", {**STREAM, "drop_last": True}),
}


OTHERS = [("averaged", "lockstep"), ("views", "map"), ("pool", "map")]


@pytest.mark.parametrize(
    "case, executor",
    [("averaged", "map"), ("views", "lockstep"), ("pool", "lockstep")]
    + [pytest.param(*other, marks=pytest.mark.marathon) for other in OTHERS],
)
def test_two_rounds_equal_those_on_kernels(case, executor, sim, monkeypatch):
    method, federation, options = CASES[case]
    ends = []
    with jax.enable_x64(True):
        for always in (True, False):
            monkeypatch.setattr(narrow, "pays", lambda *a, always=always, **k: always)
            engine = sim.make_engine(
                method,
                getattr(sim, federation)(),
                executor=executor,
                precision="float64",
                **({"rounds": 2, "eval_every": 2} | options),
            )
            result = sim.run(engine)
            ends.append((result.end, result.blocks[-1]))
            assert all(count > 0 for count in spanned(engine)) if always else not any(spanned(engine))
    assert sim.gap(ends[0][0], ends[1][0]) < 1e-9
    sim.assert_blocks_agree(ends[0][1], ends[1][1], 1e-9)


@pytest.mark.parametrize(
    "method, options",
    [
        (FedAvg(), {"optimizer": "adam"}),
        (FedAvg(), {"weight_decay": 0.1}),
        (FedAvg(), {"clip": 1.0}),
        (FedAvg(), {"momentum": 0.5, "optimizer_state": "keep"}),
        (FedAvg(), {"encoders": ("dnn_bn",)}),
        (FedProx(), {}),
    ],
    ids=["adam", "decay", "clip", "kept", "whole", "proximal"],
)
def test_what_leaves_the_span_is_trained_on_kernels(method, options, sim, monkeypatch):
    monkeypatch.setattr(narrow, "pays", lambda *a, **k: True)
    engine = sim.make_engine(method, sim.alike(), model="shared", **options)
    assert spanned(engine) == [0]


def test_unobserved_inputs_are_not_read(sim, monkeypatch):
    monkeypatch.setattr(narrow, "pays", lambda *a, **k: True)
    ends = []
    for value in (0.0, np.nan):
        federation = sim.alike()
        observed, data = federation.observed, federation.data
        inputs = {name: table.copy() for name, table in data.inputs.items()}
        for j, name in enumerate(data.modalities):
            inputs[name][~observed[:, j]] = value
        federation = dataclasses.replace(federation, data=dataclasses.replace(data, inputs=inputs))
        engine = sim.make_engine(FedAvg(), federation, model="shared", rounds=1, eval_every=1)
        assert spanned(engine) == [1]
        ends.append(sim.run(engine).end)
    jax.tree.map(np.testing.assert_array_equal, *ends)


def test_it_pays_for_wide_inputs_of_few_samples():
    assert pays(2000, 96, 72, batch=12, steps=12)
    assert pays(784, 128, 80, batch=10, steps=16)
    assert not pays(64, 96, 72, batch=12, steps=12)
    assert not pays(784, 128, 6000, batch=10, steps=1200)
    # A single pass in a single batch reads each kernel once as it is, whatever the batch has room for.
    assert not pays(784, 128, 80, batch=80, steps=1)
    assert not pays(784, 128, 80, batch=8000, steps=1)
    # X of so many samples would be far larger than the kernel.
    assert not pays(3072, 128, 1000, batch=10, steps=500)
    assert not pays(784, 128, 0, batch=10, steps=0)


def test_short_clients_are_not_made_to_pay_for_a_long_one(sim):
    """By size of client: one of 60 samples among clients of 2, of one shape, each on its own."""
    data = sim.make_data(100, sizes={"a": 400})
    alike = sim.make_federation(data, [[1]] * 2, [30, 30], validation=1, test=1)
    skewed = sim.make_federation(data, [[1]] * 9, [60, *[2] * 8], validation=1, test=1)
    options = {"model": "shared", "encoders": ("mlp",), "widths": ((16,),), "batch": 2, "executor": "map"}
    assert spanned(sim.make_engine(FedAvg(), alike, **options)) == [1]
    assert spanned(sim.make_engine(FedAvg(), skewed, **options)) == [0]


def test_a_batch_without_places_is_refused(sim, monkeypatch):
    """As wide as it has samples: coefficients have the shape of kernels, and would pass for them."""
    monkeypatch.setattr(narrow, "pays", lambda *a, **k: True)
    engine = sim.make_engine(FedAvg(), sim.alike(sim.make_data(sizes={"a": 9, "b": 9, "c": 9})), model="shared")
    context, world, state, (rounds,) = engine.context, engine.world, engine.initial_state(), engine.rounds
    plan, lanes = engine.executor.plans[0], jnp.arange(3)
    crowd, start = gather_crowd(context, plan, world, state, lanes, lanes >= 0, jnp.int32(1))
    narrowing, _ = rounds.trainer(plan)._trained(world)
    crowd, inside = narrowing.enter(context, world, crowd, start)
    batch = read(world, crowd, world.tables.train[crowd.member])
    assert inside["encoders"][-1]["params"]["kernel"].shape[1] == 9
    with pytest.raises(AssertionError, match="places"):
        see(context, narrowing.plan, world, crowd, inside, batch, crowd.keys, train=False)
