"""Tiny federations in double precision, and a laboratory that compiles each method on each of them once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_mm.data import from_arrays
from fedjax_mm.federation.federation import Federation
from fedjax_mm.federation.tables import index_table
from fedjax_mm.simulation.engine import build_engine
from fedjax_mm.simulation.population import build_population
from fedjax_mm.simulation.settings import Settings
from fedjax_mm.simulation.stores import network_of

SAMPLES, CLASSES = 72, 3
DEFAULTS = {
    "rounds": 3,
    "eval_every": 1,
    "model": "shared",
    "dim": 4,
    "epochs": 2,
    "batch": 8,
    "lr": 0.1,
    "fusion": "sum",
    "precision": "float64",
    "executor": "lockstep",
    "devices": 1,
}


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def make_data():
    rng = np.random.default_rng(0)
    y = np.arange(SAMPLES) % CLASSES
    inputs = {
        name: (rng.normal(size=(CLASSES, width))[y] + rng.normal(size=(SAMPLES, width))).astype(np.float32)
        for name, width in (("a", 3), ("b", 2))
    }
    return from_arrays(inputs, y, classes=["red", "green", "blue"])


def make_federation(data, train, holds=None):
    """A federation with these training samples; samples from 48 on are for validation and test."""
    clients, rest = len(train), np.arange(48, SAMPLES)
    return Federation(
        data=data,
        clients=tuple(map(str, range(clients))),
        holds=np.ones((clients, 2), bool) if holds is None else np.asarray(holds, bool),
        observed=data.observed,
        train=index_table([np.asarray(rows) for rows in train], SAMPLES),
        validation=index_table(np.array_split(rest[::2], clients), SAMPLES),
        test=index_table(np.array_split(rest[1::2], clients), SAMPLES),
        split_seed=0,
        settings={},
    )


@dataclasses.dataclass
class Trial:
    """A run, round by round: host copies of the states (the first is the initial one) and what the blocks left."""

    engine: object
    states: list
    blocks: list

    def of_client(self, module, client, round_=-1):
        """The parameters one client has in a module after a round, one tree a network, by modality."""
        store = self.engine.context.stores[module]
        values = self.states[round_].stores[module]
        found = [network_of(store, values, client, j) for j in range(store.network.shape[1])]
        return [tree for tree in found if tree is not None]

    def term(self, name):
        """A term or counter, `[rounds]`."""
        return np.array([sums[-1, 0] / weights[-1, 0] for sums, weights in (b.terms[name] for b in self.blocks)])


class Laboratory:
    """Engines, compiled once; a world may be swapped for another of the same shapes without compiling."""

    def __init__(self):
        self.data = make_data()
        self.engines = {}
        self.starts = {}

    def federation(self, train, holds=None, data=None):
        return make_federation(data or self.data, train, holds)

    def build(self, method, federation, **settings):
        resolved = Settings(**DEFAULTS | settings).resolved("all", federation.size)
        return build_engine(method, build_population((0,), [federation]), resolved)

    def engine(self, method, federation, **settings):
        key = (jax.tree.structure(method), id(federation), tuple(sorted(settings.items())))
        if key not in self.engines:
            # The federation is kept too, so that no other can get its id.
            self.engines[key] = self.build(method, federation, **settings), federation
        return self.engines[key][0]

    def run(self, method, federation, *, tables=None, **settings):
        """Runs a method; `tables` maps the population's tables to others of the same shapes."""
        engine = self.engine(method, federation, **settings)
        if id(engine) not in self.starts:
            self.starts[id(engine)] = to_host(engine.initial_state())
        world = engine.world._replace(
            method=jax.tree.map(lambda number: jnp.full(1, number, jnp.float64), method),
            tables=tables(engine.world.tables) if tables else engine.world.tables,
        )
        swapped = dataclasses.replace(engine, world=world)
        trial = Trial(engine, [self.starts[id(engine)]], [])
        state = to_device(trial.states[0])
        for first, length in swapped.blocks():
            state, block = swapped.run_block(state, first, length)
            trial.states.append(to_host(state))
            trial.blocks.append(block)
        return trial


def to_host(tree):
    return jax.tree.map(np.array, tree)


def to_device(tree):
    return jax.tree.map(jnp.array, tree)


@pytest.fixture(scope="session")
def laboratory():
    return Laboratory()


@pytest.fixture(scope="session")
def three(laboratory):
    """Three clients with both modalities and 8, 13 and 19 samples; only the last holds the third class."""
    first, second, third = (np.flatnonzero(laboratory.data.labels[:48] == c) for c in range(CLASSES))
    return laboratory.federation(
        [[*first[:5], *second[:3]], [*first[5:9], *second[3:12]], [*first[9:13], *second[12:13], *third[:14]]]
    )


@pytest.fixture(scope="session")
def alone(laboratory):
    """One client with 20 samples: two full batches of eight and half of one."""
    return laboratory.federation([np.arange(20)])


@pytest.fixture
def close():
    """Asserts that two lists of arrays are equal to 1e-12."""

    def check(got, expected):
        got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
        assert len(got) == len(expected) > 0
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)

    return check


@pytest.fixture
def same():
    """Whether two lists of arrays are equal bit for bit."""

    def check(a, b):
        pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
        assert pairs
        return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)

    return check
