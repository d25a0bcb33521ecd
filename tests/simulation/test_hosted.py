"""Clients' state on the host is a way of running one computation: it gives the numbers of the device."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_mm as fmm
from fedjax_mm.errors import RunError, UsageError
from fedjax_mm.federation.federation import Federation
from fedjax_mm.federation.tables import index_table
from fedjax_mm.methods import method
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.fedper import FedPer
from fedjax_mm.methods.layout import Upload
from fedjax_mm.methods.moon import Moon
from fedjax_mm.runs import checkpoints
from fedjax_mm.simulation import hosted
from fedjax_mm.simulation.engine import Engine

COMPILED = "/jax/core/compile/backend_compile_duration"
SMALL = {"model": "shared", "encoders": ("mlp",), "widths": ((),), "fusion": "sum", "epochs": 1, "participation": 2}


@method
class Remembers(FedPer):
    """FedPer whose clients keep a number of their own, which grows by what they have seen and enters the loss."""

    name: ClassVar[str] = "remembers"

    def init_client(self, key, info):
        return {"number": jax.random.uniform(key), "rounds": jnp.int32(0)}

    def loss(self, lane):
        ce, terms = super().loss(lane)
        return ce * (1 + lane.state["number"]), terms

    def upload(self, start, end, sums, info, state):
        return Upload(state={"number": state["number"] + info.n, "rounds": state["rounds"] + 1})


@method
class Fails(FedAvg):
    """The loss of client 5 is not a number."""

    name: ClassVar[str] = "fails"

    def loss(self, lane):
        ce, terms = super().loss(lane)
        return ce * jnp.where(lane.info.id == 5, jnp.nan, 1.0), terms


def seven(sim):
    """Seven clients of one shape; by windows of three, one is left over."""
    return sim.make_federation(sim.make_data(90, sizes={"a": 4, "b": 3}), [[1, 1]] * 7, [9, 5, 2, 7, 3, 4, 6])


@pytest.fixture(autouse=True)
def windows_of_three(monkeypatch):
    monkeypatch.setattr(hosted, "LEAST", 3)


@pytest.fixture
def compiled():
    """What was compiled since."""
    events = []

    def listen(event, duration, **_):
        if event == COMPILED:
            events.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


def pair(sim, rule, **options):
    engines = [sim.make_engine(rule, seven(sim), client_state=place, **options) for place in ("device", "host")]
    return engines, [sim.run(engine) for engine in engines]


def assert_equal(sim, runs):
    (device, host) = runs
    for a, b in zip(device.states, host.states, strict=True):
        assert sim.gap(a, b) < 1e-9
    for a, b in zip(device.blocks, host.blocks, strict=True):
        sim.assert_blocks_agree(a, b, 1e-9)


@pytest.mark.slow
def test_private_heads_client_state_and_optimisers_are_equal(sim, tmp_path, compiled):
    with jax.enable_x64(True):
        options = SMALL | {"precision": "float64", "eval_every": 1, "seeds": (0, 3), "executor": "map"}
        (_, engine), runs = pair(sim, Remembers(), optimizer="adam", optimizer_state="keep", **options)
        assert engine.hosted and engine.hosted.context.clients == 3 and engine.context.clients == 7
        assert_equal(sim, runs)
        assert runs[1].end.clients["rounds"].sum() == 3 * 2 * 2
        # Gone on with from a checkpoint; of what is compiled once, nothing is again.
        checkpoints.save(tmp_path, 1, runs[1].states[0], fingerprint={})
        compiled.clear()
        state = checkpoints.restore(tmp_path, like=runs[1].end, fingerprint={}, hosted=True)[1]
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state))
        state = engine.placed(state)
        for first in (2, 3):
            state, block = engine.run_block(state, first, 1)
            assert block.compile_seconds < 0.1
        assert sim.same_bits(runs[1].end, state) == []
        assert not compiled


@pytest.mark.slow
def test_previous_networks_and_local_statistics_are_equal(sim):
    """A block of three rounds in lockstep, whose window is not all clients."""
    with jax.enable_x64(True):
        options = SMALL | {"encoders": ("dnn_bn",), "statistics": "local", "precision": "float64"}
        (_, engine), runs = pair(sim, Moon(), executor="lockstep", **options)
        assert engine.hosted.context.clients == 6
        assert_equal(sim, runs)


@pytest.mark.slow
def test_a_client_that_fails_is_named(sim):
    options = SMALL | {"participation": 6, "eval_every": 1, "client_state": "host"}
    with pytest.raises(RunError, match="of client client5"):
        sim.run(sim.make_engine(Fails(), seven(sim), **options))


@pytest.mark.slow
def test_what_a_program_needs_does_not_grow_with_clients(sim):
    data, needs = sim.make_data(30), {}
    for clients in (50, 400):
        samples = [np.arange(3) + k % 27 for k in range(clients)]
        federation = Federation(
            data=data,
            clients=tuple(f"client{k}" for k in range(clients)),
            holds=np.ones((clients, 3), bool),
            observed=np.ones((data.size, 3), bool),
            split_seed=0,
            settings={},
            **{part: index_table(samples, data.size) for part in ("train", "validation", "test")},
        )
        engine = sim.make_engine(FedPer(), federation, client_state="host", executor="map", **SMALL)
        needs[clients] = engine.run_block(engine.initial_state(), 1, 1)[1].program_bytes
    assert 0 < needs[50] == needs[400]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "debug"}, "does not go with executor=debug"),
        ({"devices": 2}, "set devices=1"),
        ({"client_state": "hots"}, "did you mean host"),
        ({"model": "pool", "widths": ((), (3,)), "pool_size": None}, r"clients of one shape, and these have \d"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options, message, sim):
    with pytest.raises(UsageError, match=message):
        sim.make_engine(fmm.methods.find("local")(), seven(sim), **SMALL | {"client_state": "host"} | options)


@pytest.mark.slow
def test_a_sweep_is_interrupted_and_gone_on_with(tmp_path, monkeypatch):
    """Two configurations side by side: their state is one on the host, and each has its checkpoints."""
    rng = np.random.default_rng(0)
    y = np.arange(140) % 3
    data = fmm.from_arrays({name: rng.normal(size=(140, 2)) + np.eye(3)[y, :2] for name in "ab"}, y)
    federation = fmm.federate(data, partition="all", clients=7)
    options = SMALL | {"rounds": 2, "eval_every": 1, "dim": 3, "grid": {"lr": [0.01, 0.1]}, "devices": 1}
    device = fmm.sweep("fedper", federation, **options)
    whole = Engine.run_block

    def run_block(self, state, first, length):
        if first == 2:
            raise KeyboardInterrupt
        return whole(self, state, first, length)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run_block", run_block)
        with pytest.raises(KeyboardInterrupt):
            fmm.sweep("fedper", federation, out=tmp_path / "run", client_state="host", **options)
    run = fmm.resume(tmp_path / "run", data=data)
    assert run.manifest["settings"]["client_state"] == "host"
    for one, other in ((device.rounds(), run.rounds()), (device.clients(), run.clients())):
        assert one.drop(columns="value").equals(other.drop(columns="value"))
        np.testing.assert_allclose(one["value"], other["value"], rtol=1e-4, atol=1e-6)
    x = {name: data.inputs[name][:2] for name in "ab"}
    for answer in (fmm.Run.predict, fmm.Run.features):
        one, other = (answer(which, 6, x, method="lr=0.1") for which in (device, run))
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-6)
