"""Dense encoders computed layer by layer equal the encoders one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_mm.models import networks
from fedjax_mm.models.encoders import EncoderSpec
from fedjax_mm.simulation.dense import make_group

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


@settings(max_examples=15, deadline=None)
@given(federations())
def test_every_slot_has_its_own_encoders_features(case):
    specs, segments = case
    if not specs:
        return
    group = make_group(range(len(specs)), specs, segments)
    counts = [sum(len(lanes) for _, lanes in parts) for parts in segments]
    trees = []
    for b, (spec, count) in enumerate(zip(specs, counts, strict=True)):
        fresh = [networks.init(spec, jax.random.key(97 * b + i), jnp.float32)[0] for i in range(count)]
        fresh = [jax.tree.map(lambda leaf, i=i: leaf + 0.1 * (i + 1), tree) for i, tree in enumerate(fresh)]
        trees.append(jax.tree.map(lambda *leaves: np.stack(leaves), *fresh))
    stacks = group.stack(trees)
    for before, after in zip(trees, group.unstack(stacks), strict=True):
        jax.tree.map(np.testing.assert_array_equal, before, after)
    inputs = {
        j: np.random.default_rng(j).normal(size=(4, BATCH, *shape)).astype(np.float32) for j, shape in SHAPES.items()
    }
    features = np.asarray(group(stacks, lambda j, lanes: jnp.asarray(inputs[j][lanes])))
    assert features.shape == (sum(counts), BATCH, 4)
    for spec, tree, parts in zip(specs, trees, segments, strict=True):
        slot = 0
        for j, lanes in parts:
            for lane in lanes:
                params = jax.tree.map(lambda leaf, s=slot: leaf[s], tree)
                mask, key = jnp.ones(BATCH, bool), jax.random.key(0)
                options = {"mask": mask, "key": key, "train": True}
                expected, _ = networks.apply(spec, params, {}, inputs[j][lane], dtype=jnp.float32, **options)
                (mine,) = np.flatnonzero((group.slot_lanes == lane) & (group.columns == j))
                np.testing.assert_allclose(features[mine], expected, rtol=1e-5, atol=1e-5)
                slot += 1
    for name, lanes in group.lanes.items():
        assert len(lanes) == len(group.row_columns[name]) == len(stacks[name]["bias"])


@pytest.mark.slow
def test_grouped_training_equals_ungrouped(sim):
    from fedjax_mm.methods.fedproto import FedProto

    with jax.enable_x64(True):
        options = {"seeds": (0, 3), "precision": "float64", "clip": 0.5, "momentum": 0.0, "encoders": ("dnn", "dnn_bn")}
        ends = []
        for state in ("reset", "keep"):
            engine = sim.make_engine(FedProto(), sim.hetero(), optimizer_state=state, **options)
            kinds = {type(unit).__name__ for plan in engine.executor.plans for unit in plan.units["encoders"]}
            assert ("DenseGroup" in kinds) == (state == "reset")
            ends.append(sim.run(engine))
        # Plain SGD keeps nothing, so that both are the same method.
        assert sim.gap(ends[0].end.stores, ends[1].end.stores) < 1e-9
        assert sim.gap(ends[0].end.server, ends[1].end.server) < 1e-9
