"""The PyTorch references do what the engine does: same weights, same data, same result."""

import dataclasses

import jax
import numpy as np
import pytest

from fedjax_mm import methods
from fedjax_mm.bench.workloads import W1, W2, W3, W4, architectures, make_federation
from fedjax_mm.simulation.engine import build_engine
from fedjax_mm.simulation.population import build_population
from fedjax_mm.simulation.settings import Settings
from fedjax_mm.simulation.stores import network_of

torch = pytest.importorskip("torch")
references = pytest.importorskip("fedjax_mm.bench.torch_reference")
streams_of = pytest.importorskip("fedjax_mm.bench.torch_streams")

ROUNDS, CLIENTS, SAMPLES = 2, 4, 12
LR = 0.1


def small(workload):
    """With narrow inputs, and one batch an epoch: the order of the samples is then no matter."""
    return dataclasses.replace(
        workload,
        pool=60,
        samples=SAMPLES,
        inputs=dict.fromkeys(workload.inputs, (7,)),
        settings={**workload.settings, "batch": SAMPLES, "lr": LR, "dim": 6},
    )


@pytest.fixture(scope="module")
def both():
    """The engine after two rounds; and makes a reference that starts from the engine's weights."""
    made = {}

    def run(workload):
        if workload.name not in made:
            workload = small(workload)
            federation = make_federation(workload, CLIENTS)
            settings = Settings(rounds=ROUNDS, eval_every=ROUNDS, model="pool", executor="map", **workload.settings)
            settings = settings.resolved(workload.partition, CLIENTS)
            population = build_population((0,), [federation])
            engine = build_engine(methods.find(workload.method)(**workload.options), population, settings)
            start = engine.gathered(engine.initial_state())
            start = jax.tree.map(np.array, start)
            end = engine.gathered(engine.run_block(engine.initial_state(), 1, ROUNDS)[0])
            task = references.make_task(workload, federation, architectures(workload, CLIENTS))
            made[workload.name] = engine, start, jax.tree.map(np.array, end), task
        return made[workload.name]

    return run


def network(engine, state, module, client, j=0):
    """A client's network as the references write one, or None."""
    store = engine.context.stores[module]
    tree = network_of(store, state.stores[module], client, j)
    if tree is None:
        return None
    hidden = tree.get("hidden", tree.get("layers", {}))
    layers = [hidden[key] for key in sorted(hidden, key=int)] + ([tree["last"]] if "last" in tree else [])
    return [leaf for layer in layers for leaf in (layer["kernel"].T, layer["bias"])]


def whole(engine, state, client):
    """Encoder and head of a client with one modality, as one network."""
    return network(engine, state, "encoders", client) + network(engine, state, "head", client)


def fill(params, values):
    with torch.no_grad():
        for leaf, value in zip(params, values, strict=True):
            leaf.copy_(torch.from_numpy(np.array(value)))


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a.detach()), b, atol=1e-4)


def moved(start, end):
    return max(float(np.abs(a - b).max()) for a, b in zip(start, end, strict=True))


@pytest.mark.parametrize("variant", ["torch-loop", "torch-vmap", "torch-bmm"])
def test_fedavg(both, variant):
    engine, start, end, task = both(W1)
    reference = references.REFERENCES["fedavg", variant](task)
    fill(reference.params, whole(engine, start, 0))
    for _ in range(ROUNDS):
        reference.round()
    assert_same(reference.params, whole(engine, end, 0))
    assert moved(whole(engine, start, 0), whole(engine, end, 0)) > 0.01


@pytest.mark.parametrize("variant", ["torch-loop", "torch-vmap"])
def test_fedproto(both, variant):
    engine, start, end, task = both(W2)
    reference = references.REFERENCES["fedproto", variant](task)
    if variant == "torch-loop":
        mine = dict(enumerate(reference.clients))
    else:
        mine = {k: [leaf[i] for leaf in stack] for ks, stack in reference.groups for i, k in enumerate(ks)}
    assert len({len(params) for params in mine.values()}) > 1
    for client, params in mine.items():
        fill(params, whole(engine, start, client))
    for _ in range(ROUNDS):
        reference.round()
    for client, params in mine.items():
        assert_same(params, whole(engine, end, client))
    assert_same(reference.prototypes, [leaf[0] for leaf in (end.server.value, end.server.present)])
    assert moved(whole(engine, start, 0), whole(engine, end, 0)) > 0.01


def test_mfedpba(both):
    engine, start, end, task = both(W3)
    reference = references.MFedPBALoop(task)
    for client, networks in enumerate(reference.clients):
        for m, params in networks.items():
            fill(params, network(engine, start, *(("head", client) if m < 0 else ("encoders", client, m))))
    phi, psi = (start.server.autoencoder[name] for name in ("encoders", "decoder"))
    given = (phi["kernel"][0], phi["bias"][0][:, None], psi["kernel"][0], psi["bias"][0])
    fill(reference.autoencoder, given)
    for _ in range(ROUNDS):
        reference.round()
    for client, networks in enumerate(reference.clients):
        for m, params in networks.items():
            assert_same(params, network(engine, end, *(("head", client) if m < 0 else ("encoders", client, m))))
    expected = end.server.prototypes
    for found, rows in ((reference.features, expected.features), (reference.logits, expected.logits)):
        present = rows.present[0]
        assert np.array_equal(found.present, present)
        np.testing.assert_allclose(np.asarray(found.value)[present], rows.value[0][present], atol=1e-4)


def test_streams(monkeypatch):
    workload = dataclasses.replace(W4, pool=40, samples=SAMPLES, inputs=dict.fromkeys("ab", (90, 3)))
    federation = make_federation(workload, 2)
    settings = Settings(rounds=1, executor="map", **workload.settings).resolved("all", 2)
    engine = build_engine(methods.find("fedavg")(), build_population((0,), [federation]), settings)
    state = engine.gathered(engine.initial_state())
    task = references.make_task(workload, federation, [])
    reference = streams_of.FedAvgStreams(task)

    def tree(module, row=0):
        return jax.tree.map(lambda leaf: np.array(leaf[row]), state.stores[module][0]["params"])

    rows = engine.context.stores["encoders"].rows["params"][0]
    streams = [layer for j in range(2) for _, layer in sorted(tree("encoders", rows[j])["convolutions"].items())]
    fusion, head = tree("fusion"), [layer for _, layer in sorted(tree("head")["layers"].items())]
    values = [
        value for layer in streams for value in (np.moveaxis(layer["kernel"], (0, 1, 2), (2, 1, 0)), layer["bias"])
    ]
    values += [fusion["hidden"]["kernel"].T, fusion["hidden"]["bias"], fusion["score"]["kernel"].T]
    values += [value for layer in head for value in (layer["kernel"].T, layer["bias"])]
    fill(reference.params, values)
    monkeypatch.setattr(streams_of, "DROPOUT", 0.0)
    found = reference.scores(reference.params, task.rows[0]).detach().numpy()
    inputs = {name: federation.data.inputs[name][federation.train.of(0)] for name in "ab"}
    expected = engine.predict(state, 0, 0, inputs)["head"]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    before = [leaf.clone() for leaf in reference.params]
    reference.round()
    assert all(not torch.equal(a, b) for a, b in zip(before, reference.params, strict=True))
    sensing = pytest.importorskip("fedjax_mm.models.sensing")
    assert (streams_of.CHANNELS, streams_of.WINDOWS) == (sensing.CHANNELS, sensing.WINDOWS)


def test_batches_are_the_clients_samples_in_an_order_of_their_own(both):
    task = both(W1)[-1]._replace(batch=5, epochs=3)
    parts = list(task.batches(task.rows))
    assert [part.shape[1] for part in parts] == [5, 5, 2] * 3
    epochs = [torch.cat(parts[start : start + 3], dim=1) for start in (0, 3, 6)]
    for epoch in epochs:
        assert torch.equal(epoch.sort(dim=1).values, task.rows.sort(dim=1).values)
    assert not torch.equal(epochs[0], epochs[1])
