"""Executors are ways of running one computation: `lockstep`, `map` and `debug` give the same numbers."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.methods import method
from fedjax_mm.methods.fedavg import FedAvg
from fedjax_mm.methods.fedproto import FedProto
from fedjax_mm.simulation import placement
from fedjax_mm.simulation.engine import build_engine
from fedjax_mm.simulation.population import build_population

EXECUTORS = ("lockstep", "map", "debug")


@method
class Remembers(FedAvg):
    """An averaged model that is held near what the client last finished with: state by client under shared networks."""

    name: ClassVar[str] = "remembers"

    def layout(self, spec):
        return dataclasses.replace(super().layout(spec), views=("download", "previous"))

    def loss(self, lane):
        ce, terms = super().loss(lane)
        gaps = jnp.square(lane.features["current"] - lane.features["previous"])
        mask = lane.batch.observed[..., None]
        return ce + jnp.sum(jnp.where(mask, gaps, 0)) / jnp.maximum(jnp.sum(mask), 1), terms


# Private encoders of several shapes; averaged models, of which a plan picks the cohort at run time, also with what each
# client keeps for itself beside them: its optimiser's state, and its last networks.
FULL = {"momentum": 0.5, "clip": 1.0, "weight_decay": 0.01, "optimizer_state": "keep", "seeds": (0, 3)}
CASES = {
    "pool": (FedProto(), "mixed", {"encoders": ("dnn", "dnn_bn"), **FULL}),
    "shared": (FedAvg(), "alike", {"encoders": ("dnn_bn",), "model": "shared", "momentum": 0.5, "seeds": (0, 3)}),
    "adam": (FedAvg(), "alike", {"model": "shared", "optimizer": "adam", "lr": 0.01, "optimizer_state": "keep"}),
    "views": (Remembers(), "alike", {"model": "shared", "seeds": (0, 3)}),
}


def outcome(sim, case, executor, **options):
    method, federation, own = CASES[case]
    engine = sim.make_engine(method, getattr(sim, federation)(), executor=executor, participation=2, **(own | options))
    assert engine.executor_name == executor
    result = sim.run(engine)
    return result.end, result.blocks[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["pool", "shared", *(pytest.param(case, marks=pytest.mark.marathon) for case in ("views", "adam"))]
)
def test_three_rounds_agree_in_float64(case, sim):
    with jax.enable_x64(True):
        reference, block = outcome(sim, case, "lockstep", precision="float64")
        for executor in ("debug",) if case == "shared" else ("map",):
            state, other = outcome(sim, case, executor, precision="float64")
            assert sim.gap(reference, state) < 1e-9, executor
            sim.assert_blocks_agree(block, other, 1e-9)


@pytest.mark.marathon
@pytest.mark.parametrize("case", ["shared", "pool"])
def test_one_step_agrees_in_float32(case, sim):
    options = {"rounds": 1, "eval_every": 1, "epochs": 1, "batch": 12, "seeds": (1,)}
    reference, block = outcome(sim, case, "lockstep", **options)
    for executor in EXECUTORS[1:2]:
        state, other = outcome(sim, case, executor, **options)
        assert sim.gap(reference, state, whole=True) < 1e-5, executor
        np.testing.assert_array_equal(block.evaluation.confusion, other.evaluation.confusion)


def test_lockstep_and_map_agree_after_a_round(sim):
    """The quick one: clients of one shape, one of them absent."""
    options = {"rounds": 1, "eval_every": 1, "seeds": (0,), "precision": "float64", "encoders": ("dnn",)}
    with jax.enable_x64(True):
        reference, block = outcome(sim, "shared", "lockstep", **options)
        state, other = outcome(sim, "shared", "map", **options)
    assert sim.gap(reference, state) < 1e-9
    sim.assert_blocks_agree(block, other, 1e-9)
    assert block.evaluation.confusion.sum() == 3 * 5, "every client is evaluated, absent ones too"


@pytest.mark.slow
@pytest.mark.parametrize("federation, participation", [("hetero", 3), ("alike", 2)])
def test_seeds_in_turns_equal_all_at_once(federation, participation, sim, monkeypatch):
    """Unlike clients in classes by size; clients of one shape, of whom a cohort is picked at run time."""
    options = {"encoders": ("dnn",), "model": "pool", "widths": ((3,),), "seeds": (0, 3, 5, 7), "momentum": 0.5}
    ends = []
    with jax.enable_x64(True):
        for cache in (placement.CACHE, 5000, 1):
            monkeypatch.setattr(placement, "CACHE", cache)
            engine = sim.make_engine(
                FedProto(), getattr(sim, federation)(), participation=participation, precision="float64", **options
            )
            turns = {plan.turns for plan in engine.executor.plans}
            ends.append((turns, sim.run(engine)))
    assert [turns for turns, _ in ends] == [{1}, {2}, {4}]
    for _, other in ends[1:]:
        assert sim.gap(ends[0][1].end, other.end) < 1e-9
        sim.assert_blocks_agree(ends[0][1].blocks[-1], other.blocks[-1], 1e-9)


def test_seeds_of_unlike_clients_step_together(sim, monkeypatch):
    monkeypatch.setattr(placement, "CACHE", 1)
    data = sim.make_data()
    others = [sim.hetero(data), sim.make_federation(data, [[1, 0, 0]] * 4, [5] * 4)]
    settings = sim.make_settings(others[0], seeds=(0, 3))
    engine = build_engine(FedProto(), build_population(settings.seeds, others), settings)
    assert {plan.turns for plan in engine.executor.plans} == {1}
