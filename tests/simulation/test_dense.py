"""Dense encoders computed layer by layer equal the encoders one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.methods.fedproto import FedProto
from fedjax_mm.methods.layout import Module
from fedjax_mm.models import networks
from fedjax_mm.models.encoders import EncoderSpec
from fedjax_mm.simulation.dense import LayerSpec, inputs_of, layer_key, layer_numbers, pieces_by_level, run_layers
from fedjax_mm.simulation.picking import rows_of_slots
from fedjax_mm.simulation.stores import _store, network_of

SHAPES = {0: (5,), 1: (2, 3), 2: (5,)}
BATCH = 3


@st.composite
def federations(draw):
    """Specs of buckets and their segments: (modality, lanes), each (lane, modality) at most once."""
    free = {j: list(draw(st.permutations(range(4)))) for j in SHAPES}
    specs, segments = [], []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["dnn", "mlp"]))
        widths = tuple(draw(st.lists(st.sampled_from([2, 4]), max_size=3)))
        shape = draw(st.sampled_from([(5,), (2, 3)]))
        spec = EncoderSpec(kind, shape, widths, 4)
        mine = []
        for j in (j for j in SHAPES if SHAPES[j] == shape):
            count = draw(st.integers(0, len(free[j])))
            taken, free[j] = free[j][:count], free[j][count:]
            if taken:
                mine.append((j, np.sort(np.array(taken, np.int32))))
        if mine and spec not in specs:
            specs.append(spec)
            segments.append(mine)
    return specs, segments


@settings(max_examples=10, deadline=None)
@given(federations())
def test_every_slot_has_its_own_encoders_features(case):
    specs, segments = case
    if not specs:
        return
    modalities, lanes = len(SHAPES), 4
    network = np.full((lanes, modalities), -1, np.int32)
    for number, parts in enumerate(segments):
        for j, held in parts:
            network[held, j] = number
    store = _store("encoders", Module(None), specs, network, np.zeros(lanes, int))
    keys = jax.random.split(jax.random.key(3), lanes * modalities).reshape(lanes, modalities)
    stacks, rows = [], []
    for spec, owners in zip(store.specs, store.owners["params"], strict=True):
        lane, column = owners.T
        number = layer_numbers(store.bucket, modalities)[lane, column]
        own = jax.vmap(layer_key)(keys[lane, column % modalities], number)
        stacks.append(spec.draw(np.asarray(jax.random.key_data(own)), np.float32))
        rows.append([(int(c), np.sort(lane[column == c])) for c in np.unique(column)])
    inputs = {
        j: np.random.default_rng(j).normal(size=(lanes, BATCH, *shape)).astype(np.float32)
        for j, shape in SHAPES.items()
    }
    levels = pieces_by_level(rows, modalities, lanes)

    def enter(piece, kernel):
        return inputs_of(piece.segments, lambda j, held: jnp.asarray(inputs[j][held])) @ kernel

    parts = run_layers(levels, store.specs, stacks, enter)
    slots = np.unique(np.concatenate([own for own, _ in parts]))
    assert slots.tolist() == [m * lanes + lane for m, lane in np.argwhere(network.T >= 0)]
    features = rows_of_slots(parts, slots)
    values = [{"params": stack} for stack in stacks]
    for slot, mine in zip(slots, np.asarray(features), strict=True):
        j, lane = divmod(slot, lanes)
        spec = specs[network[lane, j]]
        params, _ = networks.init(spec, keys[lane, j], jnp.float32)
        jax.tree.map(np.testing.assert_array_equal, params, network_of(store, values, lane, j))
        options = {"mask": jnp.ones(BATCH, bool), "key": jax.random.key(0), "train": True}
        expected, _ = networks.apply(spec, params, {}, inputs[j][lane], dtype=jnp.float32, **options)
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.marathon
def test_training_layer_by_layer_equals_training_whole_encoders(sim, monkeypatch):
    options = {"seeds": (3,), "precision": "float64", "clip": 0.5, "momentum": 0.5, "encoders": ("dnn", "dnn_bn")}
    runs = []
    with jax.enable_x64(True):
        for kinds in (("dnn", "mlp"), ()):
            monkeypatch.setattr("fedjax_mm.simulation.dense.KINDS", kinds)
            engine = sim.make_engine(FedProto(), sim.hetero(), optimizer_state="keep", **options)
            kept = engine.context.stores["encoders"].specs
            assert any(isinstance(spec, LayerSpec) for spec in kept) == bool(kinds)
            runs.append((engine, sim.run(engine).end))
    (engine, end), (other, reference) = runs
    for client in range(engine.context.clients):
        for j in range(3):
            pair = [sim.network(e, s, "encoders", 0, client, j) for e, s in ((engine, end), (other, reference))]
            assert (pair[0] is None) == (pair[1] is None)
            assert pair[0] is None or sim.gap(*pair) < 1e-9
    assert sim.gap(end.server, reference.server) < 1e-9
