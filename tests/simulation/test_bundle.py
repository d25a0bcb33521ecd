"""Configurations that differ in numbers are trained side by side, each as it would be alone."""

import dataclasses

import jax
import numpy as np
import pytest

from fedjax_mm.errors import RunError
from fedjax_mm.methods.fedproto import FedProto
from fedjax_mm.simulation.bundle import make_bundle
from fedjax_mm.simulation.engine import build_engine

CONFIGURATIONS = {
    "near": (FedProto(lam=0.1), 0.03),
    "far": (FedProto(lam=3.0), 0.03),
    "slow": (FedProto(lam=0.1), 0.01),
}
OPTIONS = {
    "encoders": ("mlp",),
    "widths": ((),),
    "seeds": (0, 3),
    "precision": "float64",
    "eval_every": 2,
    "executor": "map",
}


def engines_of(sim, **options):
    first = sim.make_engine(FedProto(), sim.alike(), **(OPTIONS | options))
    settings, made = first.context.settings, {}
    for label, (method, lr) in CONFIGURATIONS.items():
        mine = dataclasses.replace(settings, lr=lr)
        made[label] = build_engine(method, first.population, mine, [first, *made.values()])
    return made


@pytest.mark.marathon
def test_each_is_trained_as_it_would_be_alone_on_two_devices_too(sim):
    with jax.enable_x64(True):
        engines = engines_of(sim, devices=2)
        assert len({id(engine.programs) for engine in engines.values()}) == 1
        bundle = make_bundle(engines)
        assert bundle.engine.devices == 2 and bundle.engine.context.seeds == 6
        state = bundle.join([engine.fresh_state() for engine in engines.values()])
        blocks = []
        for first, length in bundle.engine.blocks():
            state, block = bundle.engine.run_block(state, first, length)
            blocks.append(bundle.blocks(block))
        ends = [sim.host(part) for part in bundle.split(state)]
        for g, engine in enumerate(engines.values()):
            alone = sim.run(engine)
            assert sim.gap(sim.host(engine.gathered(alone.state)), ends[g]) < 1e-9
            for mine, theirs in zip(alone.blocks, (parts[g] for parts in blocks), strict=True):
                np.testing.assert_array_equal(mine.evaluation.confusion, theirs.evaluation.confusion)
                assert mine.terms.keys() == theirs.terms.keys()
                for name in mine.terms:
                    np.testing.assert_allclose(mine.terms[name], theirs.terms[name], rtol=1e-9, atol=1e-9)
        assert sim.gap(ends[0], ends[1]) > 1e-3 and sim.gap(ends[0], ends[2]) > 1e-3


def test_states_are_joined_and_split_without_loss(sim):
    engines = engines_of(sim, precision="float32")
    bundle = make_bundle(engines)
    states = [engine.fresh_state() for engine in engines.values()]
    for before, after in zip(states, bundle.split(bundle.join(states)), strict=True):
        assert sim.same_bits(before, after) == []
    only = make_bundle({"near": engines["near"]})
    assert sim.same_bits(states[0], only.split(only.join(states[:1]))[0]) == []


def test_the_configuration_that_is_not_finite_is_named(sim):
    engines = engines_of(sim, precision="float32")
    engines["broken"] = build_engine(
        FedProto(lam=1e30), engines["near"].population, engines["near"].context.settings, engines.values()
    )
    bundle = make_bundle(engines)
    state = bundle.join([engine.fresh_state() for engine in engines.values()])
    with pytest.raises(RunError, match="broken: not finite in round 2"):
        bundle.engine.run_block(state, 1, 2)
