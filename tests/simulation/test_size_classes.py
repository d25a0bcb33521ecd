"""Clients of like size step together where that saves more work than it costs to compile."""

import types

import numpy as np
import pytest

from fedjax_mm.methods.local import Local
from fedjax_mm.simulation.plans import lockstep_plans, size_classes

BATCH = 10


def lanes(sizes, bucket, seeds=2):
    """Stores and sizes of `seeds` equal seeds, from samples and encoder layers by client."""
    return {"encoders": types.SimpleNamespace(bucket=np.tile(bucket, (seeds, 1)))}, np.tile(sizes, (seeds, 1))


@pytest.mark.parametrize(
    ("sizes", "bucket", "classes"),
    [
        # Architectures of their own: a class for each number of steps, the longest first; nothing is compiled twice.
        ([100, 20, 95, 5], [[0, 1], [2, -1], [3, 4], [5, -1]], [0, 1, 0, 2]),
        # One architecture and like sizes: three times the compiling would save a fifth of the work.
        ([100, 90, 80], [[0], [0], [0]], [0, 0, 0]),
        # One architecture, one client forty times as long as many others: worth compiling twice.
        ([400] + [10] * 30, [[0]] * 31, [0] + [1] * 30),
        # Equal sizes are one class whatever the architectures are.
        ([50, 50], [[0], [1]], [0, 0]),
    ],
)
def test_classes(sizes, bucket, classes):
    found = size_classes(*lanes(sizes, bucket), BATCH)
    assert len(set(zip(found.tolist(), classes, strict=True))) == len(set(classes)) == len(set(found.tolist()))
    assert found[int(np.argmax(sizes))] == 0


def test_plans_hold_every_lane_once_and_as_many_of_each_seed(sim):
    engine = sim.make_engine(Local(), sim.hetero(), executor="lockstep", seeds=(0, 1))
    plans = lockstep_plans(engine.context.stores, engine.population.train_sizes(), 4, batch=4, split=True)
    assert len(plans) > 1
    assert sorted(np.concatenate([plan.members for plan in plans])) == list(range(8))
    for plan in plans:
        assert plan.members.tolist() == sorted(plan.members.tolist())
        np.testing.assert_array_equal(plan.members // 4, plan.seeds)
        assert len(set(np.bincount(plan.seeds).tolist())) == 1
    (whole,) = lockstep_plans(engine.context.stores, engine.population.train_sizes(), 4, batch=4, split=False)
    assert whole.members.tolist() == list(range(8))
