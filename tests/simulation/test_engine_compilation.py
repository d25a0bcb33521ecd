"""One program: nothing compiles after the first block, numbers are arguments, memory does not grow with rounds."""

import functools

import jax
import jax.numpy as jnp
import pytest

from fedjax_mm.methods import method, shared_model
from fedjax_mm.methods.fedproto import FedProto
from fedjax_mm.simulation.blocks import run_rounds
from fedjax_mm.simulation.build import state_shapes
from fedjax_mm.simulation.engine import build_engine
from fedjax_mm.simulation.evaluate import Evaluator

COMPILED = "/jax/core/compile/backend_compile_duration"
OPTIONS = {"model": "shared", "partition": "all", "participation": 2, "epochs": 1, "batch": 4}


@method
class Shared(FedProto):
    """FedProto over an averaged model: shared, stacked and server state at once."""

    def layout(self, spec):
        return shared_model(spec, encoders="mean", head="mean")


@pytest.fixture(scope="module")
def federation(sim):
    return sim.alike()


@pytest.fixture(scope="module")
def engine(sim, federation):
    return sim.make_engine(Shared(), federation, rounds=40, eval_every=2, seeds=(0, 1), **OPTIONS)


def lowered(engine, length):
    """The block as the engine lowers it."""
    evaluator = Evaluator(engine.context, engine.predictors)
    block = functools.partial(run_rounds, engine.executor, engine.reader, engine.rounds[0], evaluator, length)
    state = state_shapes(engine.context, engine.world)
    return jax.jit(block, donate_argnums=1).lower(engine.world, state, jax.ShapeDtypeStruct((), jnp.int32))


def live_bytes():
    return sum(array.nbytes for array in jax.live_arrays())


def test_nothing_compiles_and_nothing_grows_after_the_first_block(engine, sim):
    state, events, sizes, cohorts = engine.initial_state(), [], [], set()

    def listen(event, duration, **_):
        if event == COMPILED:
            events.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for position, (first, length) in enumerate(engine.blocks()):
            state, block = engine.run_block(state, first, length)
            if position == 0:
                assert events, "the first block compiles, and the listener hears it"
            elif position > 1:
                assert not events, f"block {position} compiled"
                assert block.compile_seconds < 0.1
            events.clear()
            cohorts.add(tuple(sim.cohort(engine, first)))
            sizes.append(live_bytes())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(sizes) == 20 and len(cohorts) > 1
    assert max(sizes[2:]) == min(sizes[2:]), sizes


def test_numbers_are_arguments_of_the_program(engine, federation, sim):
    text = lowered(engine, 2).as_text()
    others = {
        "lr": sim.make_engine(Shared(), federation, rounds=40, eval_every=2, seeds=(0, 1), lr=0.5, **OPTIONS),
        "lam": sim.make_engine(Shared(lam=0.1), federation, rounds=40, eval_every=2, seeds=(0, 1), **OPTIONS),
        "seeds": sim.make_engine(Shared(), federation, rounds=40, eval_every=2, seeds=(5, 9), **OPTIONS),
    }
    for name, other in others.items():
        assert lowered(other, 2).as_text() == text, name
    assert lowered(engine, 3).as_text() != text


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rounds_of_a_block(engine):
    sizes = [lowered(engine, length).compile().memory_analysis().temp_size_in_bytes for length in (2, 8)]
    assert abs(sizes[0] - sizes[1]) <= 0.02 * sizes[0], sizes


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_types_are_the_same_in_and_out(precision, federation, sim):
    with jax.enable_x64(precision == "float64"):
        engine = sim.make_engine(Shared(), federation, rounds=2, eval_every=2, precision=precision, **OPTIONS)
        start = engine.initial_state()
        end = lowered(engine, 2).out_info[0]
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(start), jax.tree.leaves(end), strict=True):
        name = jax.tree_util.keystr(path)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        assert not jnp.issubdtype(a.dtype, jnp.floating) or a.dtype == precision, name


def test_methods_that_differ_in_numbers_share_programs_and_each_gets_its_own_results(engine, sim):
    population, settings = engine.population, engine.context.settings
    other = build_engine(Shared(lam=3.0), population, settings, [engine])
    alone = build_engine(Shared(lam=3.0), population, settings)
    assert other.programs is engine.programs is not alone.programs
    assert build_engine(Shared(weight="uniform"), population, settings, [engine]).programs is not engine.programs
    runs = [e.run_block(e.initial_state(), 1, 2)[1].evaluation for e in (engine, other, alone)]
    assert runs[1].loss.tobytes() == runs[2].loss.tobytes() != runs[0].loss.tobytes()
