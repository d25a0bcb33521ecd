"""Programs that wait for XLA's threads are kept from several devices, unless there is a thread to spare."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_mm.methods.method import Method, Server, method
from fedjax_mm.simulation import placement
from fedjax_mm.simulation.waits import traced


def test_operations_are_found_however_deep_they_lie():
    def deep(x):
        def body(_, x):
            return jax.lax.cond(x.sum() > 0, lambda x: jnp.linalg.solve(x, x), jax.jit(jnp.sin), x)

        return jax.lax.fori_loop(0, 2, jax.vmap(body, (None, 0)), x)

    waits, shapes = traced(deep, jax.ShapeDtypeStruct((3, 4, 4), jnp.float32))
    assert waits == {"lu", "triangular_solve"}
    assert shapes.shape == (3, 4, 4)
    assert traced(jnp.sin, jnp.ones(2))[0] == frozenset()
    # A primitive of its own, which becomes two calls of LAPACK only when it is lowered.
    assert traced(jax.vmap(jnp.linalg.qr), shapes)[0] == {"qr"}


@pytest.mark.parametrize(("said", "threads"), [("7", 7), ("2", 4), ("many", 5), ("", 5), (None, 5)])
def test_threads_are_the_cores_the_process_may_run_on(said, threads, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(5)), raising=False)
    monkeypatch.delenv("NPROC") if said is None else monkeypatch.setenv("NPROC", said)
    assert placement._pool_threads(4) == threads


@method
class Solving(Method):
    """A server that solves a system."""

    name = "solving"

    def init_server(self, key, spec):
        return jnp.ones((2, 2))

    def server(self, server, mean, stack, mask, key):
        return Server(mean.modules, jnp.linalg.solve(server.state + jnp.eye(2), server.state)), {}


@method
class Scoring(Method):
    """A client whose prediction does."""

    name = "scoring"

    def predict(self, lane):
        return {"head": jnp.linalg.solve(jnp.eye(lane.batch.y.shape[0]), lane.logits())}


OPTIONS = {"encoders": ("mlp",), "widths": ((),), "seeds": (0, 3), "devices": 2, "executor": "map"}


@pytest.mark.parametrize("waiting", [Solving, Scoring])
def test_such_a_method_needs_a_thread_to_spare(waiting, monkeypatch, sim):
    monkeypatch.setattr("fedjax_mm.simulation.placement._pool_threads", lambda devices: 2)
    engine = sim.make_engine(waiting(), sim.alike(), **OPTIONS)
    assert engine.devices == 1
    assert "lu, triangular_solve may wait for ever" in engine.reason and "NPROC=3" in engine.reason
    monkeypatch.setattr("fedjax_mm.simulation.placement._pool_threads", lambda devices: 3)
    assert sim.make_engine(waiting(), sim.alike(), **OPTIONS).devices == 2


def test_others_do_not(monkeypatch, sim):
    monkeypatch.setattr("fedjax_mm.simulation.placement._pool_threads", lambda devices: 2)
    assert sim.make_engine(Method(), sim.alike(), **OPTIONS).devices == 2
